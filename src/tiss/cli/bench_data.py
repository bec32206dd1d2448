"""Times the loaders on a data set: without worker processes, with two, and with the decoded images in memory.

Examples:
  tiss bench data
  tiss bench data --data voc --root VOCdevkit --crops 256,512 --out loaders.json
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tiss.cli.flags import print_table
from tiss.config import setting
from tiss.errors import TissError


@dataclass(frozen=True)
class Options:
    data: str = setting("shapes", "data set", sets="data.name")
    root: str | None = setting(None, "folder that holds it", sets="data.root")
    crops: tuple[int, ...] | None = setting(None, "sides of the crop, with commas (None: the data set's own)")
    workers: tuple[int, ...] = setting((0, 2), "numbers of worker processes, with commas")
    images: int = setting(500, "number of images")
    seconds: float = setting(3.0, "seconds for which each row is timed")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")
    out: str | None = setting(None, "write the figures as JSON into this file")


@dataclass(frozen=True)
class LoaderFigure:
    """One row: a loader at one crop size."""

    loader: str  # "workers 2" or "memory (cpu)"
    crop: int
    images_per_second: float
    start_seconds: float  # until the first batch: decoding everything, or starting the processes


def run(options: Options) -> int:
    from tiss.engine.device import choose_device
    from tiss.files import write_json
    from tiss.scenarios.scenario import load_scenario

    train = load_scenario(options.data, root=options.root)[0].train
    device = choose_device(options.device)
    figures = list(measure_loaders(train, options, device))
    rows = [
        (one.loader, str(one.crop), f"{one.images_per_second:.0f}", f"{one.start_seconds:.1f} s")
        for one in figures
    ]
    headings = ("loader", ">crop", ">images/s", ">first batch after")
    print_table(f"{options.data}: training crops on {device}", headings, rows)
    if options.out:
        write_json(Path(options.out), {"data": options.data, "rows": [asdict(figure) for figure in figures]})
    return 0


def measure_loaders(split: Any, options: Options, device: str, batch: int = 12) -> Iterator[LoaderFigure]:
    """Each number of workers and the memory loader, at each crop; what does not fit in memory is said and left out."""
    split = replace(split, ids=split.ids[: options.images])
    for crop in options.crops or (split.dataset.default_crop,):
        for workers in (*options.workers, None):
            try:
                yield _measure(split, crop, workers, min(batch, len(split.ids)), options.seconds, device)
            except TissError as error:
                print(f"tiss: {error}")


def _measure(
    split: Any, crop: int, workers: int | None, batch: int, seconds: float, device: str
) -> LoaderFigure:
    """`workers` None: from memory."""
    import torch

    from tiss.data.augment import AugmentSettings
    from tiss.data.loader import TrainLoader

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    begin = time.perf_counter()
    how: Any = {"kind": "memory"} if workers is None else {"kind": "workers", "workers": workers}
    with TrainLoader(
        split, AugmentSettings(crop), batch=batch, seed=0, step=0, device=device, **how
    ) as loader:
        batches = itertools.chain.from_iterable(loader.epoch(epoch) for epoch in itertools.count())
        next(batches)
        wait()
        started = time.perf_counter()
        made = 0
        while made == 0 or time.perf_counter() - started < seconds:
            next(batches)
            made += 1
        wait()
        rate = made * batch / (time.perf_counter() - started)
    name = f"memory ({device})" if workers is None else f"workers {workers}"
    return LoaderFigure(name, crop, rate, started - begin)
