"""Speed and memory of an incremental step.

A row of a suite is a model, a batch and a number of classes. It is timed in three ways: the plain path (eager, logits
at every pixel), the fast path (what `tiss run` does on this machine), and the fast path without any loss, which is
what the encoder alone costs. A fourth, on request, is the fast path with `train.deterministic`. All run in one
process, so that their ratios are comparable.

The memory suite measures the peak of an update at two batch sizes. The difference is the memory per image, the rest
is that of models and optimizer, and the largest batch for a card follows from both.
"""

import gc
import os
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tiss.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from tiss.data.base import Batch
from tiss.engine.device import WORKSPACE, World, make_deterministic, make_fast
from tiss.engine.loop import EagerUpdate, build_optimizer, graphed
from tiss.engine.progress import Reporter
from tiss.engine.recipes import PAPER, Plan
from tiss.engine.run_folder import describe_environment
from tiss.engine.session import Session, freeze_copy
from tiss.errors import TissError
from tiss.methods.base import Method, build_method
from tiss.models import Need, Output, SegmentationModel, build_model

WAYS = ("plain", "fast", "no loss")
DETERMINISTIC = "deterministic"  # a fourth way: the fast path with train.deterministic
MEMORY_ENCODERS = ("vit_small_patch16_384", "vit_base_patch16_384", "vit_large_patch16_384")
MEMORY_CLASSES = ((16, 5), (101, 50))  # old and new channels: VOC's 21, ADE20K's 151
MEMORY_BATCHES = ((8, 24), (2, 6))  # the second pair if the first does not fit on this card
CARDS = (8, 16, 24, 80)  # GiB
RESERVE = 1.0  # GiB of a card that CUDA itself and gaps between blocks take


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


class NoLoss(Method):
    """The same passes through the same models, with the mean of the logits as the loss."""

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
    """Times every row in every way; with versions, hardware and date, for JSON."""
    ways = (*WAYS, DETERMINISTIC) if train.deterministic else WAYS
    if train.deterministic:
        os.environ.setdefault(*WORKSPACE)  # for all ways: cuBLAS reads it once
    train = replace(train, deterministic=False)
    world = World(train)
    results = []
    for row in rows:
        entry: dict[str, Any] = asdict(row) | {"gflop_per_image": flops_per_image(row) / 1e9}
        for way in ways:
            reporter.say(f"{row.name}: {way}")
            make_deterministic(world.device, way == DETERMINISTIC)
            found = time_row(row, way, train, world, updates)
            tflops = entry["gflop_per_image"] * found["images_per_second"] / 1000
            found["share_of_limit"] = tflops / limit_tflops if limit_tflops else None
            entry[way.replace(" ", "_")] = found
        plain, fast, none = (entry[way]["milliseconds"] for way in ("plain", "fast", "no_loss"))
        entry |= {"speedup": plain / fast, "of_no_loss": none / fast, "loss_share": 1 - none / fast}
        if DETERMINISTIC in ways:
            entry["cost_of_determinism"] = entry[DETERMINISTIC]["milliseconds"] / fast - 1
        results.append(entry)
    make_deterministic(world.device, False)
    return {**where(world), "limit_tflops": limit_tflops, "updates": updates, "rows": results}


def where(world: World) -> dict[str, Any]:
    return {"date": f"{datetime.now(UTC):%FT%T}+00:00", "environment": describe_environment(world)}


def time_row(row: Row, way: str, train: TrainConfig, world: World, updates: int) -> dict[str, Any]:
    """Milliseconds per update, the median over groups that are each timed as a whole, and the peak memory."""
    cuda = world.device.type == "cuda"
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(world.device)
    update, batch = prepare_row(row, way, train, world)
    for _ in range(8):  # compilation, capture, clocks
        update(batch)
    wait, calls, times = torch.cuda.synchronize if cuda else lambda: None, max(1, updates // 5), []
    for _ in range(5):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            update(batch)
        wait()
        times.append(1000 * (time.perf_counter() - start) / calls)
    milliseconds = median(times)
    return {
        "milliseconds": milliseconds,
        "images_per_second": 1000 * row.batch / milliseconds,
        "peak_gib": torch.cuda.max_memory_allocated(world.device) / 2**30 if cuda else None,
    }


def prepare_row(row: Row, way: str, train: TrainConfig, world: World) -> tuple[Any, Batch]:
    """The update function of one way of timing a row, and the batch for it."""
    if way == "plain":
        train = replace(train, fused="off", compile="off")
    train = replace(train, batch=row.batch, epochs=1, step_epochs=1)
    train = replace(train, **{k: v for k, v in PAPER.items() if getattr(train, k) is None})
    data = DataConfig(crop=row.size, scale=(1.0, 1.0))
    config = RunConfig(data=data, model=ModelConfig(encoder=row.encoder), train=train, method=row.method)
    plan = Plan.of(config, 1)
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
    session = Session(config, model, method, world, Reporter())
    optimizer = build_optimizer(model, plan, world.device)
    return graphed(EagerUpdate(session, model, teacher, optimizer, plan)), random_batch(row, world.device)


def random_batch(row: Row, device: torch.device) -> Batch:
    """Images of noise; labels in blocks: new classes, background, some ignored pixels."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (row.batch, 3, row.size, row.size), dtype=torch.uint8, generator=generator)
    coarse = torch.randint(row.old - 1, row.old + row.new, (row.batch, 1, 8, 8), generator=generator)
    coarse = torch.where(coarse < row.old, 0, coarse)
    label = F.interpolate(coarse.float(), (row.size, row.size)).long()[:, 0]
    label[:, :: max(2, row.size // 16)] = 255
    return Batch(image.to(device), label.to(device), [str(i) for i in range(row.batch)])


def flops_per_image(row: Row) -> float:
    """Student forward and backward (three times forward) and teacher forward."""
    with torch.device("meta"):
        model = build_model(ModelConfig(encoder=row.encoder), ["background", "a"], row.size)
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model(torch.empty(1, 3, row.size, row.size, dtype=torch.uint8))
    return 4.0 * counter.get_total_flops()


def run_memory_suite(
    train: TrainConfig, reporter: Reporter, encoders: tuple[str, ...] = MEMORY_ENCODERS, size: int = 512
) -> dict[str, Any]:
    """Peak memory of every encoder and number of classes, with and without checkpointing."""
    world = World(train)
    if world.device.type != "cuda":
        raise TissError("memory needs a GPU, and torch finds no CUDA device: use demo", setting="suite")
    rows = []
    for encoder, (old, new), checkpointing in product(encoders, MEMORY_CLASSES, (False, True)):
        entry = {"encoder": encoder, "size": size, "classes": old + new, "checkpointing": checkpointing}
        reporter.say(", ".join(f"{key} {value}" for key, value in entry.items()))
        row = Row("", encoder, size, 0, old, new)
        rows.append(entry | measure(row, replace(train, checkpointing=checkpointing), world))
    return {**where(world), "reserve_gib": RESERVE, "memory": rows}


def measure(row: Row, train: TrainConfig, world: World) -> dict[str, Any]:
    """Peaks at two batch sizes, the larger pair that fits on this card, and what follows from them."""
    for pair in MEMORY_BATCHES:
        try:
            found = [time_row(replace(row, batch=batch), "fast", train, world, 1) for batch in pair]
        except torch.OutOfMemoryError:
            continue
        return fits(pair, (found[0]["peak_gib"], found[1]["peak_gib"]))
    batch = MEMORY_BATCHES[-1][1]
    raise TissError(f"memory: {row.encoder} does not fit, not even a batch of {batch}", setting="suite")


def fits(batches: tuple[int, int], peaks: tuple[float, float]) -> dict[str, Any]:
    """The fixed memory, the memory per image, and the largest batch for each card.

    >>> fits((2, 6), (2.0, 4.0))["largest_batch"]
    {'8': 12, '16': 28, '24': 44, '80': 156}
    """
    each = (peaks[1] - peaks[0]) / (batches[1] - batches[0])
    fixed = peaks[0] - each * batches[0]
    largest = {str(card): max(0, int((card - RESERVE - fixed) / each + 1e-9)) for card in CARDS}
    return {
        "batches": list(batches),
        "peak_gib": list(peaks),
        "fixed_gib": fixed,
        "gib_per_image": each,
        "largest_batch": largest,
    }
