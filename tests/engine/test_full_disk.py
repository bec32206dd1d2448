"""A disk that is full at the end of a step: what was trained is stored, or the run resumes from there."""

import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import tiss.engine.run
from tiss.cli.main import main
from tiss.files import atomic, tensors
from tiss.methods.base import METHODS

METHOD = "mib"


@pytest.fixture
def flags(tiny_flags: list[str]) -> list[str]:
    return [*tiny_flags, "--method", METHOD, "--train.epochs", "2"]


def fill(patched: pytest.MonkeyPatch, place: str) -> None:
    """There is no space for tensors in folders whose name has `place` in it."""
    replacing = tensors.replacing

    def refuse(path: Path) -> AbstractContextManager[Path]:
        with atomic.explained(path):
            if place in path.parent.name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replacing(path)

    patched.setattr(tensors, "replacing", refuse)


def count_updates(patched: pytest.MonkeyPatch) -> list[int]:
    method = METHODS.get(METHOD)
    plain, calls = method.losses, []

    def losses(*arguments: Any) -> Any:
        calls.append(1)
        return plain(*arguments)

    patched.setattr(method, "losses", losses)
    return calls


def weights(run: Path) -> list[bytes]:
    return [(run / f"step-{step}" / "model.safetensors").read_bytes() for step in (0, 1)]


def test_a_step_is_stored_though_its_last_checkpoint_finds_no_space(
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", *flags, "--out", str(tmp_path / "straight")]) == 0
    fill(monkeypatch, "checkpoint")
    assert main(["run", *flags, "--out", str(tmp_path / "full")]) == 0
    assert "step 1: no space for the last checkpoint" in capsys.readouterr().err
    assert weights(tmp_path / "full") == weights(tmp_path / "straight")


def test_a_step_that_finds_no_space_is_not_trained_again(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    straight, out = tmp_path / "straight", tmp_path / "full"
    assert main(["run", *flags, "--out", str(straight)]) == 0
    with monkeypatch.context() as patched:
        fill(patched, "step-1")
        calls = count_updates(patched)
        assert main(["run", *flags, "--out", str(out)]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "then resume: from update " in line
    done = int(line.split("from update ")[1].split()[0])
    assert line.endswith(f"update {done} of step 1")
    assert 0 < done < len(calls)  # those of step 0 are among them
    with monkeypatch.context() as patched:
        calls = count_updates(patched)
        assert main(["run", *flags, "--out", str(out), "--resume"]) == 0
    assert calls == []
    assert weights(out) == weights(straight)
    assert not (out / "checkpoint").exists()


def test_a_disk_without_room_for_the_model_is_refused_before_anything_is_trained(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    calls = count_updates(monkeypatch)
    assert main(["run", *flags, "--out", str(tmp_path / "full")]) == 2
    assert "MB are needed" in capsys.readouterr().err
    assert calls == []
    assert not (tmp_path / "full").exists()


@pytest.mark.parametrize("method", ["mib", "recall", "sdr", "plop"])
def test_the_room_that_is_held_is_enough(
    method: str, tiny_flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    plain = tiss.engine.run.reserve

    def reserve(folder: Path, size: int) -> Any:
        held.append(size)
        return plain(folder, size)

    monkeypatch.setattr(tiss.engine.run, "reserve", reserve)
    assert main(["run", *tiny_flags, "--method", method, "--out", str(tmp_path / "out")]) == 0
    for step, size in enumerate(held):
        files = (tmp_path / "out" / f"step-{step}").iterdir()
        assert sum(path.stat().st_size for path in files) <= size
    assert len(held) == 2
