"""A long run in one process: fifty steps of one class each on `shapes`, with an eye on what grows.

    python -m tools.soak --steps 50

`shapes` has eight classes; a shape in each of seven columns of the picture makes 56 of them. After every step
the memory, the open files, the threads, the child processes and the seconds for one update are noted. Between the
first ten and the last ten steps none of them may grow beyond what the settings below allow. The exit code is 1
if one does.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiss.config import RunConfig, from_mapping
from tiss.data.base import DATASETS, IGNORE
from tiss.data.shapes import CLASSES, Shapes
from tiss.engine.progress import Reporter
from tiss.engine.run import run_experiment
from tiss.methods.base import settings_from

COLUMNS = 7
ALLOWED = {"megabytes": 1.05, "files": 1.0, "threads": 1.0, "processes": 1.0, "milliseconds": 1.3}


@DATASETS.register("shapes-in-columns")
class ShapesInColumns(Shapes):
    """`shapes` with a class for each shape and column."""

    name = "shapes-in-columns"
    classes = tuple(f"{shape}-{column}" for shape in CLASSES for column in range(COLUMNS))

    def __init__(self, root: str | None = None) -> None:
        super().__init__(root, size=32, train=400, test=40)
        self._split: dict[str, NDArray[np.uint8]] = {}

    def arrays(self, split: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        images, labels = super().arrays(split)
        if split not in self._split:
            column = (np.arange(labels.shape[2]) * COLUMNS // labels.shape[2]).astype(np.uint8)
            finer = ((labels - 1) * COLUMNS + column + 1).astype(np.uint8)
            self._split[split] = np.where((labels == 0) | (labels == IGNORE), labels, finer)
        return images, self._split[split]


@dataclass
class State:
    """The process after a step."""

    step: int
    megabytes: float
    files: int
    threads: int
    processes: int
    milliseconds: float  # for one update, the median of the step's log lines


class Watcher(Reporter):
    """Notes the state of the process each time a step is done."""

    def __init__(self, folder: Path, batch: int) -> None:
        self.folder, self.batch = folder, batch
        self.states: list[State] = []

    def say(self, text: str) -> None:
        if not text.startswith("step "):
            return
        gc.collect()
        step = len(self.states)
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        speeds = [line["images_per_second"] for line in lines if line["step"] == step]
        self.states.append(look(step, 1000 * self.batch / statistics.median(speeds)))
        print(f"{self.states[-1]}", flush=True)


def look(step: int, milliseconds: float) -> State:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    children = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                children += int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
            except OSError:
                continue
    return State(
        step,
        int(status["VmRSS"].split()[0]) / 1024,
        len(os.listdir("/proc/self/fd")),
        int(status["Threads"]),
        children,
        round(milliseconds, 2),
    )


def soak(steps: int, folder: Path, loader: str, workers: int, method: str) -> list[State]:
    """The run; returns the state after each step."""
    batch = 8
    names = ShapesInColumns.classes[: steps + 1]
    settings: dict[str, Any] = {
        "data": {"name": "shapes-in-columns", "crop": 32},
        "task": "/".join(names),
        "method": method,
        "model": {"encoder": "vit_micro_patch8"},
        "train": {
            "recipe": "demo", "epochs": 2, "step_epochs": 2, "batch": batch, "log_every": 2, "save_every": 8,
            "loader": loader, "workers": workers,
        },
        "out": str(folder),
    }  # fmt: skip
    config = from_mapping(RunConfig, settings)
    watcher = Watcher(folder, batch)
    config = RunConfig(**{**config.__dict__, "method": settings_from(config.method)})
    run_experiment(config, reporter=watcher)
    return watcher.states


def growth(states: list[State]) -> dict[str, tuple[float, float]]:
    """For each quantity its median over ten early and over the ten last steps; the first two warm up."""
    early, late = states[2:12], states[-10:]
    found = {}
    for name in ALLOWED:
        before = statistics.median(getattr(state, name) for state in early)
        found[name] = (before, statistics.median(getattr(state, name) for state in late))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50, help="incremental steps after the first")
    parser.add_argument("--loader", choices=("workers", "memory"), default="workers")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--method", default="tiss")
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        states = soak(options.steps, Path(name, "run"), options.loader, options.workers, options.method)
    failed = False
    print("| after a step | steps 2 to 11 | last ten | |\n|---|---|---|---|")
    for name, (before, after) in growth(states).items():
        grown = after > before * ALLOWED[name]
        failed = failed or grown
        print(f"| {name} | {before:.1f} | {after:.1f} | {'grows' if grown else 'flat'} |")
    print(f"{len(states)} steps in {time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
