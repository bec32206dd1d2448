"""A long run in one process: fifty steps of one class each on `shapes`, with an eye on what grows.

    python -m tools.soak --steps 50

`shapes` has eight classes; a shape in each of seven columns of the picture makes 56 of them. After every step
the memory, the open files, the threads and the child processes are noted. Between the first ten and the last ten steps
none of them may grow beyond what the settings below allow. Updates take longer with every class. So at the end the same
update of a toy model is timed here and in a fresh process, by turns, and the last step is done again by a fresh
process: neither may be much faster there. The exit code is 1 if something grows.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
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
SLOWER = (
    1.3  # times a fresh process's: what an update may take here; machines that are shared differ by a fifth
)
ROUNDS = 15


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
    update: float  # milliseconds of the step's own updates, the median of its log lines


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
        update = 1000 * self.batch / statistics.median(speeds)
        self.states.append(look(step, update))
        print(f"{self.states[-1]}", flush=True)


def make_probe() -> Callable[[], float]:
    """Times an update of a model of its own: milliseconds, the least of ten groups of three."""
    from tiss.config import TrainConfig
    from tiss.engine.bench import SUITES, prepare_row
    from tiss.engine.world import World

    train = TrainConfig(device="cpu")
    update, batch = prepare_row(SUITES["small"][0], "fast", train, World(train))

    def probe() -> float:
        times = []
        for _ in range(10):
            start = time.perf_counter()
            for _ in range(3):
                update(batch)
            times.append((time.perf_counter() - start) / 3)
        return 1000 * min(times)

    return probe


def by_turns() -> tuple[float, float]:
    """The probe's milliseconds here and in a fresh process, each the median of several rounds."""
    command = [sys.executable, "-m", "tools.soak", "--probe"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as fresh:
        assert fresh.stdin is not None and fresh.stdout is not None
        probe = make_probe()
        here, there = [], []
        for _ in range(ROUNDS):
            here.append(probe())
            print(file=fresh.stdin, flush=True)
            there.append(float(fresh.stdout.readline()))
        fresh.stdin.close()
    return statistics.median(here), statistics.median(there)


def answer_probes() -> None:
    """The fresh process's part: one measurement a line."""
    probe = make_probe()
    for _ in sys.stdin:
        print(probe(), flush=True)


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


def soak(
    steps: int, folder: Path, loader: str, workers: int, method: str, resume: bool = False
) -> list[State]:
    """The run, or what is left of it; returns the state after each step."""
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
    run_experiment(config, reporter=watcher, resume=resume)
    return watcher.states


def last_step_afresh(steps: int, folder: Path, words: list[str]) -> State:
    """The last step once more, by a process that has done nothing before."""
    shutil.rmtree(folder / f"step-{steps}")
    command = [sys.executable, "-m", "tools.soak", "--steps", str(steps), "--resume", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return State(**json.loads(done.stdout.splitlines()[-1]))


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
    parser.add_argument("--resume", type=Path, help="do what is left of this run and print its last state")
    parser.add_argument("--probe", action="store_true", help="time the toy update once a line of input")
    options = parser.parse_args()
    if options.probe:
        answer_probes()
        return 0
    how = (options.loader, options.workers, options.method)
    if options.resume:
        print(json.dumps(asdict(soak(options.steps, options.resume, *how, resume=True)[-1])))
        return 0
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "run")
        states = soak(options.steps, folder, *how)
        words = ["--loader", options.loader, "--workers", str(options.workers), "--method", options.method]
        fresh = last_step_afresh(options.steps, folder, words)
    here, there = by_turns()
    failed = states[-1].update > SLOWER * fresh.update or here > SLOWER * there
    print("| after a step | steps 2 to 11 | last ten | |\n|---|---|---|---|")
    for name, (before, after) in growth(states).items():
        grown = after > before * ALLOWED[name]
        failed = failed or grown
        print(f"| {name} | {before:.1f} | {after:.1f} | {'grows' if grown else 'flat'} |")
    print(
        f"update of the run itself: {states[2].update:.1f} ms at step 2, {states[-1].update:.1f} ms at step "
        f"{options.steps}, {fresh.update:.1f} ms there in a fresh process (of {fresh.megabytes:.0f} megabytes)"
    )
    print(f"the same update by turns: {here:.2f} ms here, {there:.2f} ms in a fresh process")
    print(f"{len(states)} steps in {time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
