"""A run of a few seconds over image files, in a process that can be killed at a chosen moment.

A moment is the n-th call of a function that all such runs go through: reading an image, an update of the optimizer,
fsync, a rename, a removal. The product knows nothing of it.
"""

import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from PIL import Image
from torch.optim.optimizer import register_optimizer_step_post_hook

STRESS = int(os.environ.get("TISS_STRESS", "1"))  # how much longer than usual the stress tests take
POINTS = {
    "read": [(Image, "open")],
    "sync": [(os, "fsync")],
    "place": [(os, "replace"), (os, "rename")],
    "remove": [(os, "unlink"), (os, "rmdir")],
    "make": [(os, "mkdir"), (os, "truncate")],
    "update": [],  # torch has a hook of its own
}


@dataclass(frozen=True)
class Kill:
    """A SIGKILL before or after the `count`-th call of a point."""

    point: str
    count: int
    after: bool = False


COMMANDS = {
    "run": """run --data folder --data.root {data} --data.crop 32 --task 2-1 --method recall --train.recipe demo
        --model.encoder vit_micro_patch8 --train.epochs 3 --train.step_epochs 3 --train.batch 6 --train.device cpu
        --train.save_every 3 --train.log_every 2 --train.loader workers --train.workers {workers}""",
    "train": "train {data} --encoder vit_micro_patch8 --epochs 4 --device cpu",
    "extend": "extend {model} --data {data} --epochs 4 --device cpu",
}
TIMED = [
    "timing.json",
    "environment.json",
    "config.yaml",
    "config.json",
    "report.txt",
    "report.html",
    "README.md",
]
PRELOADED = ["tests.stress.runs", "tiss.cli.run", "tiss.engine.run", "tiss.report.tables"]
MODEL = Path(__file__).parents[1] / "fixtures" / "v0_1" / "model"


def attempt(words: list[str], work: Path, kill: Kill | None = None, file_size: int = 0) -> tuple[int, str]:
    """The command in a process of its own: its exit code (negative for a signal) and what it printed.

    `file_size` is the largest file in bytes that it can write. Nothing of it may be left behind.
    """
    context = multiprocessing.get_context("forkserver")  # a clean process that has the modules already
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_child, args=(words, work, kill, file_size))
    process.start()
    process.join(240)
    assert process.exitcode is not None, f"hangs after {kill}"
    deadline = time.monotonic() + 15
    while left := session(process.pid or 0):
        assert time.monotonic() < deadline, f"processes left behind by {kill}: {left}"
        time.sleep(0.02)
    return process.exitcode, (work / "output").read_text()


def session(leader: int) -> list[int]:
    """The processes of a session that are still there."""
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if process.info["status"] != psutil.STATUS_ZOMBIE and os.getsid(process.pid) == leader:
                found.append(process.pid)
    return found


def _child(words: list[str], work: Path, kill: Kill | None, file_size: int) -> None:
    os.setsid()
    output = os.open(work / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if file_size:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    calls = hook(kill)
    from tiss.cli.main import main

    code = main(words)
    if kill is None:
        (work / "calls.json").write_text(json.dumps(calls))
    sys.stdout.flush()
    sys.exit(code)


def hook(kill: Kill | None) -> Counter[str]:
    """Counts the calls of every point in this process, and kills it at its moment."""
    calls: Counter[str] = Counter()
    here = os.getpid()

    def hooked(point: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            if os.getpid() != here:  # a worker of the loader
                return plain(*values, **named)
            calls[point] += 1
            due = kill and (kill.point, kill.count) == (point, calls[point])
            if due and not kill.after:
                os.kill(here, signal.SIGKILL)
            try:
                return plain(*values, **named)
            finally:
                if due:
                    os.kill(here, signal.SIGKILL)

        return call

    for point, places in POINTS.items():
        for owner, name in places:
            setattr(owner, name, hooked(point, getattr(owner, name)))
    register_optimizer_step_post_hook(hooked("update", lambda *_: None))
    return calls


def contents(out: Path) -> dict[str, Any]:
    """What two results of one command have in common: every file, without times and settings of the machine."""
    found: dict[str, Any] = {}
    for path in out.rglob("*"):
        name = str(path.relative_to(out))
        if name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{**line, "time": 0, "images_per_second": 0} for line in lines]
        elif path.is_dir() or name in TIMED:
            found[name] = "there"
        else:
            found[name] = path.read_bytes()
    return found
