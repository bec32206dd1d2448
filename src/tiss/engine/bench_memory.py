"""What fits on a card: the peak of memory of a step at two batch sizes, and the largest batch that follows from it.

An update's memory is that of the models and their optimiser and, on top, so much for each picture. Two measurements
give both. The peak is the allocator's own count of an update on the fast path, CUDA graph included.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch

from tiss.config import TrainConfig
from tiss.engine.bench import Row, prepare_row
from tiss.engine.environment import describe_environment
from tiss.engine.progress import Reporter
from tiss.engine.world import World
from tiss.errors import TissError

ENCODERS = ("vit_small_patch16_384", "vit_base_patch16_384", "vit_large_patch16_384")
CLASSES = ((16, 5), (101, 50))  # old and new channels: VOC's 21, ADE20K's 151
BATCHES = (
    (8, 24),
    (2, 6),
)  # the second where the first do not fit here: few pictures, and activations may not be the peak
CARDS = (8, 16, 24, 80)  # GiB
RESERVE = 1.0  # GiB of a card that CUDA itself and gaps between blocks take
GIB = 2**30


def run_memory_suite(
    train: TrainConfig, reporter: Reporter, encoders: tuple[str, ...] = ENCODERS, size: int = 512
) -> dict[str, Any]:
    """Measures every encoder, number of classes and way of keeping activations; JSON with versions and hardware."""
    world = World(train)
    if world.device.type != "cuda":
        raise TissError(
            "--suite memory measures a GPU's memory, and torch finds no CUDA device here: take demo"
        )
    rows = []
    for encoder in encoders:
        for old, new in CLASSES:
            for checkpointing in (False, True):
                entry = {
                    "encoder": encoder,
                    "size": size,
                    "classes": old + new,
                    "checkpointing": checkpointing,
                }
                reporter.say(", ".join(f"{key} {value}" for key, value in entry.items()))
                setting = replace(train, checkpointing=checkpointing)
                rows.append({**entry, **measure(Row("", encoder, size, 0, old, new), setting, world)})
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": describe_environment(world),
        "reserve_gib": RESERVE,
        "memory": rows,
    }


def measure(row: Row, train: TrainConfig, world: World) -> dict[str, Any]:
    """Peaks at two batches, the larger pair that fits on this card, and what follows from them."""
    for pair in BATCHES:
        try:
            small, large = (peak(replace(row, batch=batch), train, world) for batch in pair)
        except torch.OutOfMemoryError:
            continue
        return fits(pair, (small, large))
    raise TissError(
        f"--suite memory: {row.encoder} does not fit on this card, not even a batch of {BATCHES[-1][1]}"
    )


def peak(row: Row, train: TrainConfig, world: World) -> float:
    """GiB at the peak of an update."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(world.device)
    update, batch = prepare_row(row, "fast", train, world)
    for _ in range(5):  # the first ones run eagerly, then one is captured
        update(batch)
    torch.cuda.synchronize(world.device)
    return torch.cuda.max_memory_allocated(world.device) / GIB


def fits(batches: tuple[int, int], peaks: tuple[float, float]) -> dict[str, Any]:
    """What two peaks say: the fixed part, that of a picture, and the largest batch for each card.

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
