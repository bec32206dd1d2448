"""How fast an incremental step is, and where its time goes: plain path and fast path in one run.

A row is a model, a batch and a number of classes. Each row is timed in three ways: the plain path (eager, logits at
every pixel), the fast path (what `tiss run` does on this machine), and the fast path without any loss, which is what
the encoder alone costs. Where it is asked for, a fourth is the fast path with `--train.deterministic true`. All
figures come from the same process, so their ratios mean something.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tiss.config import ModelConfig, RunConfig, TrainConfig
from tiss.data.base import Batch
from tiss.engine.compilation import make_fast
from tiss.engine.determinism import WORKSPACE, deterministic
from tiss.engine.environment import describe_environment
from tiss.engine.journal import Journal
from tiss.engine.learner import freeze_copy
from tiss.engine.optimisation import build_optimizer
from tiss.engine.progress import Reporter
from tiss.engine.recipes import PAPER
from tiss.engine.training import StepTraining
from tiss.engine.update import make_update
from tiss.engine.world import World
from tiss.methods.base import Method, build_method
from tiss.models.build import build_model
from tiss.models.contract import Need, Output
from tiss.models.model import SegmentationModel

WAYS = ("plain", "fast", "no loss")
DETERMINISTIC = "deterministic"  # a fourth way: the fast path with --train.deterministic true


@dataclass(frozen=True)
class Row:
    """One line of a suite."""

    name: str
    encoder: str
    size: int
    batch: int
    old: int  # channels of the teacher, the background counted
    new: int
    method: str = "tiss"


SUITES: dict[str, tuple[Row, ...]] = {
    "step": (
        Row("VOC, batch 12", "vit_small_patch16_384", 512, 12, 16, 5),
        Row("VOC, batch 48", "vit_small_patch16_384", 512, 48, 16, 5),
        Row("ADE20K, batch 8", "vit_small_patch16_384", 512, 8, 101, 50),
        Row("ADE20K, batch 24", "vit_small_patch16_384", 512, 24, 101, 50),
        Row("21 classes, batch 8", "vit_small_patch16_384", 512, 8, 16, 5),
    ),
    "demo": (Row("shapes, batch 32", "vit_demo_patch8", 64, 32, 5, 2),),
    "small": (Row("toy", "vit_micro_patch8", 32, 4, 3, 1),),
}


@dataclass(frozen=True)
class Timing:
    """What one way of doing a row came to."""

    milliseconds: float
    images_per_second: float
    peak_gib: float | None
    share_of_limit: float | None


class NoLoss(Method):
    """The same passes through the same models, and nothing to minimise but a mean of the logits."""

    uses_teacher = True
    name = "no loss"

    def __init__(self, inner: Method) -> None:
        super().__init__(inner.settings, inner.steps)
        self.inner = inner

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        return self.inner.needs(model)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        return {"nothing": output.logits.float().mean()}


def run_suite(
    rows: tuple[Row, ...], train: TrainConfig, updates: int, limit_tflops: float | None, reporter: Reporter
) -> dict[str, Any]:
    """Times every row in every way; JSON with versions, hardware and date."""
    ways = (*WAYS, DETERMINISTIC) if train.deterministic else WAYS
    if train.deterministic:
        os.environ.setdefault(*WORKSPACE)  # for all ways: cuBLAS reads it once
    train = replace(train, deterministic=False)
    world = World(train)
    results = []
    for row in rows:
        entry: dict[str, Any] = asdict(row)
        entry["gflop_per_image"] = flops_per_image(row) / 1e9
        for way in ways:
            reporter.say(f"{row.name}: {way}")
            with deterministic(world.device) if way == DETERMINISTIC else nullcontext():
                timing = time_row(row, way, train, world, updates, entry["gflop_per_image"], limit_tflops)
            entry[way.replace(" ", "_")] = asdict(timing)
        entry["speedup"] = entry["plain"]["milliseconds"] / entry["fast"]["milliseconds"]
        entry["of_no_loss"] = entry["no_loss"]["milliseconds"] / entry["fast"]["milliseconds"]
        entry["loss_share"] = 1 - entry["of_no_loss"]
        if DETERMINISTIC in ways:
            entry["cost_of_determinism"] = (
                entry[DETERMINISTIC]["milliseconds"] / entry["fast"]["milliseconds"] - 1
            )
        results.append(entry)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "date": when,
        "environment": describe_environment(world),
        "limit_tflops": limit_tflops,
        "updates": updates,
        "rows": results,
    }


def time_row(
    row: Row, way: str, train: TrainConfig, world: World, updates: int, gflop: float, limit: float | None
) -> Timing:
    """Milliseconds an update, the median of `updates` timed in groups, and the peak of memory."""
    with _memory(world.device) as peak:
        update, batch = prepare_row(row, way, train, world)
        for _ in range(8):  # compilation, capture, clocks
            update(batch)
        milliseconds = _median_time(partial(update, batch), updates, world.device)
    rate = 1000 * row.batch / milliseconds
    share = gflop * rate / (limit * 1000) if limit else None
    return Timing(milliseconds, rate, peak[0] if peak else None, share)


def prepare_row(row: Row, way: str, train: TrainConfig, world: World) -> tuple[Any, Batch]:
    """The update function of one way of doing a row, and the batch to feed it."""
    if way == "plain":
        train = replace(train, fused="off", compile="off")
    train = replace(train, batch=row.batch, epochs=1, step_epochs=1)
    train = replace(train, **{k: v for k, v in PAPER.items() if getattr(train, k) is None})
    config = RunConfig(model=ModelConfig(encoder=row.encoder), train=train, method=row.method)
    old = ["background", *(f"class {i}" for i in range(1, row.old))]
    model = build_model(config.model, old, row.size).to(world.device)
    teacher = freeze_copy(model)
    model.grow([f"new {i}" for i in range(row.new)], "background")
    model.to(world.device).train()
    model.encoder.checkpointing = train.checkpointing
    make_fast(model, train, world)
    make_fast(teacher, train, world)
    inner = build_method(row.method, 2)
    method = NoLoss(inner) if way == "no loss" else inner
    training = StepTraining(config, world, model, teacher, method, None, None, Journal(), Reporter())  # type: ignore[arg-type]
    optimizer = build_optimizer(model, train, 1, world.device)
    return make_update(training, optimizer), random_batch(row, world.device)


def random_batch(row: Row, device: torch.device) -> Batch:
    """Pictures of noise; labels in blocks, new classes and background with some ignored pixels."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (row.batch, 3, row.size, row.size), dtype=torch.uint8, generator=generator)
    coarse = torch.randint(row.old - 1, row.old + row.new, (row.batch, 8, 8), generator=generator)
    coarse = torch.where(coarse < row.old, 0, coarse)
    scale = -(-row.size // 8)
    label = (
        coarse.repeat_interleave(scale, 1).repeat_interleave(scale, 2)[:, : row.size, : row.size].contiguous()
    )
    label[:, :: max(2, row.size // 16)] = 255
    return Batch(image.to(device), label.to(device), [str(i) for i in range(row.batch)])


def flops_per_image(row: Row) -> float:
    """Student forward and backward (three times forward) and teacher forward, counted, not guessed."""
    with torch.device("meta"):
        model = build_model(ModelConfig(encoder=row.encoder), ["background", "a"], row.size)
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model(torch.empty(1, 3, row.size, row.size, dtype=torch.uint8))
    return 4.0 * counter.get_total_flops()


def _median_time(function: Any, count: int, device: torch.device) -> float:
    """Milliseconds a call: the median over groups of calls, each group timed as a whole."""
    groups = []
    for _ in range(5):
        _synchronize(device)
        start = time.perf_counter()
        for _ in range(max(1, count // 5)):
            function()
        _synchronize(device)
        groups.append((time.perf_counter() - start) / max(1, count // 5))
    return 1000 * sorted(groups)[2]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _memory(device: torch.device) -> Iterator[list[float]]:
    """Yields a list that gets the peak of the GPU's memory in GiB; on other devices it stays empty."""
    gc.collect()
    peak: list[float] = []
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    yield peak
    if device.type == "cuda":
        peak.append(torch.cuda.max_memory_allocated(device) / 2**30)
