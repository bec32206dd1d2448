"""A long run in one process: fifty steps of one class each on `shapes`, with an eye on what grows.

    python -m tools.soak --steps 50

`shapes` has eight classes; a shape in each of seven columns of the picture makes 56 of them. After every step
the memory, the open files, the threads and the child processes are noted. Between the first ten and the last ten steps
none of them may grow beyond what the settings below allow. Updates take longer with every class. So at the end the
last step is done again several times, here and in fresh processes by turns, which must not be much faster. The exit
code is 1 if something grows.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
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
ALLOWED = {"megabytes": 1.05, "files": 1.0, "threads": 1.0, "processes": 1.0}
SLOWER = 1.15  # times a fresh process's: what an update may take in this one
ROUNDS = 7


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
    update: float  # milliseconds of the step's own updates by its fastest log line: other work only adds


class Watcher(Reporter):
    """Notes the state of the process each time a step is done."""

    def __init__(self, folder: Path, batch: int) -> None:
        self.folder, self.batch = folder, batch
        self.states: list[State] = []

    def say(self, text: str) -> None:
        if not text.startswith("step "):
            return
        gc.collect()
        step = int(text.split()[1])
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        speeds = [line["images_per_second"] for line in lines if line["step"] == step]
        update = 1000 * self.batch / max(speeds)
        self.states.append(look(step, update))
        print(f"{self.states[-1]}", flush=True)


def look(step: int, update: float) -> State:
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
        round(update, 2),
    )


@dataclass(frozen=True)
class How:
    """What may differ between long runs."""

    loader: str = "workers"
    workers: int = 1
    method: str = "tiss"


def soak(steps: int, folder: Path, how: How, resume: bool = False) -> list[State]:
    """The run, or what is left of it; returns the state after each step."""
    batch = 8
    names = ShapesInColumns.classes[: steps + 1]
    settings: dict[str, Any] = {
        "data": {"name": "shapes-in-columns", "crop": 32},
        "task": "/".join(names),
        "method": how.method,
        "model": {"encoder": "vit_micro_patch8"},
        "train": {
            "recipe": "demo", "epochs": 2, "step_epochs": 2, "batch": batch, "log_every": 2, "save_every": 8,
            "loader": how.loader, "workers": how.workers,
        },
        "out": str(folder),
    }  # fmt: skip
    config = from_mapping(RunConfig, settings)
    watcher = Watcher(folder, batch)
    config = RunConfig(**{**config.__dict__, "method": settings_from(config.method)})
    run_experiment(config, reporter=watcher, resume=resume)
    return watcher.states


def last_step_by_turns(steps: int, folder: Path, how: How) -> tuple[float, float]:
    """Milliseconds of an update in the last step, done again and again here and in fresh processes."""
    words = ["--loader", how.loader, "--workers", str(how.workers), "--method", how.method]
    command = [sys.executable, "-m", "tools.soak", "--steps", str(steps), "--resume", str(folder), *words]
    here, there = [], []
    for _ in range(ROUNDS):
        shutil.rmtree(folder / f"step-{steps}")
        here.append(soak(steps, folder, how, resume=True)[-1].update)
        shutil.rmtree(folder / f"step-{steps}")
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        there.append(float(done.stdout.splitlines()[-1]))
    return statistics.median(here), statistics.median(there)


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
    parser.add_argument("--resume", type=Path, help="do what is left of this run and print an update's time")
    options = parser.parse_args()
    how = How(options.loader, options.workers, options.method)
    if options.resume:
        print(soak(options.steps, options.resume, how, resume=True)[-1].update)
        return 0
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "run")
        states = soak(options.steps, folder, how)
        seconds = time.monotonic() - start
        here, there = last_step_by_turns(options.steps, folder, how)
    failed = here > SLOWER * there
    print("| after a step | steps 2 to 11 | last ten | |\n|---|---|---|---|")
    for name, (before, after) in growth(states).items():
        grown = after > before * ALLOWED[name]
        failed = failed or grown
        print(f"| {name} | {before:.1f} | {after:.1f} | {'grows' if grown else 'flat'} |")
    print(f"an update of the last step, by turns: {here:.1f} ms here, {there:.1f} ms in a fresh process")
    print(f"{len(states)} steps in {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
