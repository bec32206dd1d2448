"""How many training crops a second each loader makes, on this machine and these pictures."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch

from tiss.data.augment import AugmentSettings
from tiss.data.loader import Kind, SplitLike, TrainLoader


@dataclass(frozen=True)
class LoaderFigure:
    """One row: a loader at one crop size."""

    loader: str  # "workers 2" or "memory (cpu)"
    crop: int
    images_per_second: float
    start_seconds: float  # until the first batch: decoding everything, or starting the processes


def measure_loaders(
    split: SplitLike,
    *,
    crops: Sequence[int] = (256, 512),
    workers: Sequence[int] = (0, 2),
    batch: int = 12,
    seconds: float = 3.0,
    images: int = 500,
    device: torch.device | str = "cpu",
) -> list[LoaderFigure]:
    """Each of `workers` and the memory loader over the first `images` pictures, for about `seconds` each."""
    kinds: list[tuple[Kind, int | None]] = [("workers", count) for count in workers]
    kinds.append(("memory", None))
    shared: dict[object, object] = {}  # the pictures are decoded once, for the first memory row
    part = SimpleNamespace(
        dataset=split.dataset,
        split=split.split,
        ids=list(split.ids)[:images],
        table=split.table,
        shared=shared,
    )
    return [_measure(part, crop, *kind, batch, seconds, device) for crop in crops for kind in kinds]


def _measure(
    split: SplitLike,
    crop: int,
    kind: Kind,
    workers: int | None,
    batch: int,
    seconds: float,
    device: torch.device | str,
) -> LoaderFigure:
    batch = min(batch, len(split.ids))
    begin = time.perf_counter()
    with TrainLoader(
        split, AugmentSettings(crop), batch=batch, seed=0, step=0, kind=kind, workers=workers, device=device
    ) as loader:
        batches = itertools.chain.from_iterable(loader.epoch(epoch) for epoch in itertools.count())
        next(batches)
        _wait(device)
        started = time.perf_counter()
        made = 0
        while made == 0 or time.perf_counter() - started < seconds:
            next(batches)
            made += 1
        _wait(device)
        elapsed = time.perf_counter() - started
        name = f"workers {workers}" if kind == "workers" else f"memory ({torch.device(device).type})"
        return LoaderFigure(name, crop, made * batch / elapsed, started - begin)


def _wait(device: torch.device | str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
