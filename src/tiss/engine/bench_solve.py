"""Speed of a step that is solved: one pass with its sums beside the encoder alone, and the solve."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from tiss.config import ModelConfig, TrainConfig
from tiss.engine.bench import Row, random_batch, where
from tiss.engine.device import World
from tiss.engine.progress import Reporter
from tiss.methods.base import build_method
from tiss.models import build_model

ROWS = {
    "solve": (
        Row("VOC", "vit_small_patch14_dinov2", 336, 0, 16, 5, "analytic"),
        Row("ADE20K", "vit_small_patch14_dinov2", 336, 0, 101, 50, "analytic"),
    ),
    "solve-small": (Row("toy", "vit_micro_patch8", 32, 2, 3, 1, "analytic"),),
}
BATCH = {"cuda": 24}  # others 4


def run_solve_suite(
    rows: tuple[Row, ...], train: TrainConfig, batches: int, reporter: Reporter
) -> dict[str, Any]:
    """Every row: images per second of the encoder alone and of the pass, seconds of the solve, size of the state."""
    world = World(train)
    found = []
    for row in rows:
        reporter.say(row.name)
        found.append(measure(row, world, batches))
    return {**where(world), "batches": batches, "solve": found}


def measure(row: Row, world: World, batches: int) -> dict[str, Any]:
    device, cuda = world.device, world.device.type == "cuda"
    size = row.batch or BATCH.get(device.type, 4)
    row = Row(row.name, row.encoder, row.size, size, row.old, row.new, row.method)
    names = ["background", *(f"class {number}" for number in range(1, row.old + row.new))]
    model = build_model(ModelConfig(encoder=row.encoder), names, row.size).to(device).eval()
    method: Any = build_method(row.method, 2)
    batch = random_batch(row, device)
    labelled = tuple(range(row.old, row.old + row.new))
    step: Any = SimpleNamespace(index=1, seen=row.old + row.new, train=Images(labelled, size * batches))
    method.step, method.seed = step, 0
    wait = torch.cuda.synchronize if cuda else lambda: None

    def seconds(work: Callable[[], Any]) -> float:
        wait()
        start = time.perf_counter()
        with torch.no_grad(), world.autocast():
            work()
        wait()
        return time.perf_counter() - start

    def alone() -> None:
        for _ in range(batches):
            model.body(batch.image)

    def whole() -> None:
        method.kept = method.sums_of(step, model, lambda: [batch] * batches).tensors()

    with torch.no_grad(), world.autocast():
        method.replace_head(model, lambda: [batch])
    seconds(alone)
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    encoder, sums, again = seconds(alone), seconds(whole), seconds(alone)
    encoder = min(encoder, again)
    solve = seconds(lambda: method.solve(model))
    return {
        "name": row.name,
        "encoder": row.encoder,
        "size": row.size,
        "batch": size,
        "classes": step.seen,
        "encoder_images_per_second": size * batches / encoder,
        "pass_images_per_second": size * batches / sums,
        "share": encoder / sums,
        "solve_seconds": solve,
        "state_mb": sum(tensor.nbytes for tensor in method.state().values()) / 1e6,
        "peak_gib": torch.cuda.max_memory_allocated(device) / 2**30 if cuda else None,
    }


class Images:
    """What a pass asks of a split."""

    def __init__(self, labelled: tuple[int, ...], count: int) -> None:
        self.labelled, self.count = labelled, count

    def __len__(self) -> int:
        return self.count
