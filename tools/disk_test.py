"""Lets a small run meet a full disk, a limit of file sizes and a read-only folder, and resumes it afterwards.

    python -m tools.disk_test

The disk is a tmpfs of a few megabytes (root only; without root that part is left out and said so). Each time
the run must end with one line and exit code 2, everything it had finished must be whole, and the resumed run
must equal the run never disturbed. The exit code is 1 if anything is not so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiss.files import read_json, read_tensors
from tools import small_run

DISK = 2 << 20


class Trial:
    """The run never disturbed, and a place where others meet trouble."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.data = small_run.make_data(work / "data")
        small_run.load_modules()
        code, text = self.run(work / "reference")
        assert code == 0, text
        self.wanted = small_run.contents(work / "reference")
        self.tried = 0

    def run(self, out: Path, **limits: Any) -> tuple[int, str]:
        words = [*small_run.arguments(self.data, out), "--resume"]
        child = small_run.start(words, self.work, **limits)
        return child.wait(), child.output.read_text()

    def expect_refusal(self, out: Path, words: tuple[str, ...], **limits: Any) -> bool:
        """Runs into the trouble; False if the run got through without meeting it."""
        code, text = self.run(out, **limits)
        if code == 0:
            return False
        self.tried += 1
        line = next((line for line in text.splitlines() if line.startswith("tiss: ")), "")
        assert code == 2, f"ended with {code}: {text[-800:]}"
        assert any(word in line for word in words), f"not a clear error: {text[-800:]}"
        assert "Traceback" not in text, text[-800:]
        check_whole(out)
        return True

    def expect_same(self, out: Path) -> None:
        """Resumes without trouble and compares."""
        code, text = self.run(out)
        assert code == 0, f"resume ended with {code}: {text[-800:]}"
        different = small_run.differences(self.wanted, small_run.contents(out))
        assert not different, f"differs in {different}"
        shutil.rmtree(out)


def check_whole(out: Path) -> None:
    """Reads every finished file of a run folder."""
    for path in out.rglob("*"):
        if not any(part.startswith(".") for part in path.relative_to(out).parts):
            if path.suffix == ".safetensors":
                read_tensors(path)
            elif path.suffix == ".json":
                read_json(path)


@contextmanager
def small_disk(place: Path, size: int = DISK) -> Iterator[Path]:
    place.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
    subprocess.run(["mount", *options, str(place)], check=True, capture_output=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
        place.rmdir()


def fill(place: Path, free: int) -> Path:
    """A file that leaves `free` bytes on the disk."""
    ballast = place / "ballast"
    space = os.statvfs(place)
    ballast.write_bytes(bytes(max(0, space.f_bavail * space.f_frsize - free)))
    return ballast


def full_disk(trial: Trial, amounts: list[int]) -> int:
    """The run with so much room, in bytes, then with enough; returns how often it met the full disk."""
    met = 0
    with small_disk(trial.work / "disk") as place:
        for free in amounts:
            ballast = fill(place, free)
            met += trial.expect_refusal(place / "run", ("No space left on device", "free some space"))
            ballast.unlink()
            trial.expect_same(place / "run")
    return met


def file_limit(trial: Trial, amounts: list[int]) -> int:
    """As `full_disk`, by a limit on the size of any file: needs no root."""
    met = 0
    for size in amounts:
        met += trial.expect_refusal(trial.work / "limited", ("free some space",), file_size=size)
        trial.expect_same(trial.work / "limited")
    return met


def read_only(trial: Trial, times: int) -> int:
    """A folder that cannot be written, from the start and after a part of the run."""
    words = ("Read-only file system", "Permission denied")
    with small_disk(trial.work / "disk") as place:
        for number in range(times):
            if number:
                ballast = fill(place, 100_000 * number)
                trial.run(place / "run")
                ballast.unlink()
            remount(place, "ro")
            refused = trial.expect_refusal(place / "run", words)
            remount(place, "rw")
            assert refused, "the run wrote into a read-only folder"
            trial.expect_same(place / "run")
    return times


def remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)


def can_mount(work: Path) -> bool:
    try:
        with small_disk(work / "probe"):
            return True
    except (subprocess.CalledProcessError, OSError):
        return False


def main() -> int:
    failed = False
    amounts = [1000, 10_000, *range(50_000, 1_500_000, 50_000)]
    with tempfile.TemporaryDirectory() as name:
        trial = Trial(Path(name))
        parts: list[tuple[str, bool, Callable[[], int]]] = [
            ("full disk", True, lambda: full_disk(trial, amounts)),
            (
                "largest file",
                False,
                lambda: file_limit(trial, [500, 1000, 2000, 4000, 8000, 20_000, 40_000]),
            ),
            ("read-only folder", True, lambda: read_only(trial, 5)),
        ]
        print("| fault | met | survived |\n|---|---|---|")
        for title, needs_root, part in parts:
            if needs_root and not can_mount(trial.work):
                print(f"| {title} | needs root | |")
                continue
            before = trial.tried
            try:
                met = part()
                print(f"| {title} | {met} | {met} |", flush=True)
            except AssertionError as error:
                failed = True
                print(f"| {title} | {trial.tried - before} | no: {error} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
