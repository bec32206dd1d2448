"""A run of a few seconds over real files, in a process that may be killed, and what it must leave behind."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLASSES = ("red", "green", "blue", "dark")
TASK = "red,green/blue/dark"


def make_data(root: Path, train: int = 24, test: int = 12, side: int = 32) -> Path:
    """Pictures with coloured boxes and their masks, as a `folder` data set."""
    chance = np.random.default_rng(0)
    colours = np.array([[90, 90, 90], [220, 40, 40], [40, 220, 40], [40, 40, 220], [10, 10, 10]])
    for split, count in (("train", train), ("test", test)):
        (root / "images" / split).mkdir(parents=True)
        (root / "masks" / split).mkdir(parents=True)
        for number in range(count):
            mask = np.zeros((side, side), dtype=np.uint8)
            for label in chance.permutation(4)[:3] + 1:
                top, left = chance.integers(0, side - 12, 2)
                mask[top : top + 12, left : left + 12] = label
            picture = colours[mask] + chance.integers(-10, 10, (side, side, 3))
            Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(
                root / "images" / split / f"{number}.png"
            )
            Image.fromarray(mask).save(root / "masks" / split / f"{number}.png")
    (root / "classes.txt").write_text("background\n" + "\n".join(CLASSES) + "\n")
    return root


def arguments(data: Path, out: Path, method: str = "tiss", **settings: Any) -> list[str]:
    """The command line of the small run: 3 steps of 12 updates, a checkpoint every third."""
    values = {
        "data": "folder",
        "data.root": data,
        "data.crop": 32,
        "task": TASK,
        "method": method,
        "model.encoder": "vit_micro_patch8",
        "train.recipe": "demo",
        "train.epochs": 3,
        "train.step_epochs": 3,
        "train.batch": 6,
        "train.save_every": 3,
        "train.log_every": 2,
        "train.loader": "workers",
        "train.workers": 0,
        "out": out,
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    return ["run", *(word for name, value in values.items() for word in (f"--{name}", str(value)))]


def load_modules() -> None:
    """Imports what a run needs, so that every forked child starts at once. Must start no thread."""
    import tiss.cli.run
    import tiss.data.folder
    import tiss.engine.run
    import tiss.evaluation.evaluate
    import tiss.report.tables  # noqa: F401


@dataclass
class Child:
    """One attempt at the run: a process, where it writes its phases, and what it prints."""

    pid: int
    phases: Path
    output: Path

    def wait(self) -> int:
        """The exit code; negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def finished(self) -> int | None:
        """The exit code once there is one."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def survivors(self) -> list[int]:
        """Processes of its session that are still there: what it leaked."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == self.pid and fields[0] not in "ZX":
                    found.append(int(entry.name))
        return found


def start(words: list[str], work: Path, **limits: Any) -> Child:
    """Starts the command in a forked process of its own session, with its phases marked in a file.

    `limits` may hold `file_size`, the largest file in bytes that the process can write.
    """
    phases, output = work / "phases", work / "output"
    phases.write_bytes(b"")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Child(pid, phases, output)
    code = 70
    try:
        os.setsid()
        os.environ["TISS_PHASE_FILE"] = str(phases)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        if "file_size" in limits:
            import resource

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file_size"], limits["file_size"]))
        from tiss.cli.main import main

        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def contents(run: Path) -> dict[str, Any]:
    """What two runs of one experiment must have in common: every file, without times and machine settings."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_dir():
            found[name] = "folder"
        elif name == "metrics.jsonl":
            found[name] = [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
        elif name in ("timing.json", "environment.json", "config.yaml"):
            found[name] = "times, machine, place"
        else:
            found[name] = path.read_bytes()
    return found


def _timeless(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("time", "images_per_second")}


def differences(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    """Names of what is missing, extra or different."""
    return [name for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]


def wait_until_gone(child: Child, seconds: float = 15) -> list[int]:
    """Waits for the rest of a killed process's session to end by itself; returns what does not."""
    deadline = time.monotonic() + seconds
    while (left := child.survivors()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
