"""A full disk, a limit on file sizes, a read-only folder: one line, exit code 2, and a run that resumes."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stress.conftest import Trial
from tests.stress.runs import STRESS, Kill
from tiss.files import read_json, read_tensors


def check_refused(code: int, text: str, words: tuple[str, ...], out: Path) -> None:
    line = next((line for line in text.splitlines() if line.startswith("tiss: ")), "")
    assert code == 2 and "Traceback" not in text, text[-800:]
    assert any(word in line for word in words), text[-800:]
    for path in out.rglob("[!.]*"):  # what is there is whole
        if path.suffix in (".safetensors", ".json") and "/." not in str(path.relative_to(out.parent)):
            (read_tensors if path.suffix == ".safetensors" else read_json)(path)


SLOW = [pytest.param(size, marks=pytest.mark.slow) for size in (500, 3000, 20_000, 40_000)]


@pytest.mark.parametrize("size", [8000, *SLOW])
def test_limit_on_file_sizes(size: int, trial: Trial) -> None:
    out = trial.work / "limited"
    check_refused(*trial.run(out, size=size), ("free some space",), out)
    trial.finish(out)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    options = ["-t", "tmpfs", "-o", f"size={2 << 20}", "tmpfs"]
    if subprocess.run(["mount", *options, str(tmp_path)], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("free", [10_000, *range(100_000, 400_000, 100_000 // STRESS)])
def test_small_disk(free: int, disk: Path, trial: Trial) -> None:
    space = os.statvfs(disk)
    (disk / "ballast").write_bytes(bytes(space.f_bavail * space.f_frsize - free))
    check_refused(*trial.run(disk / "run"), ("No space left", "free some space"), disk / "run")
    (disk / "ballast").unlink()
    trial.finish(disk / "run")


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 20])
def test_read_only_folder(count: int, disk: Path, trial: Trial) -> None:
    if count:
        trial.run(disk / "run", Kill("sync", count))
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    check_refused(*trial.run(disk / "run"), ("Read-only file system", "cannot write"), disk / "run")
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    trial.finish(disk / "run")
