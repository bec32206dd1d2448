"""A run that stops within a step, or finds the disk full at its end: what was trained is stored, or resumed from."""

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tiss.engine.run
from tiss.cli.main import main
from tiss.engine.checkpoint import load_optimizer, optimizer_tensors
from tiss.engine.loop import LossLog
from tiss.files import atomic, tensors, write_tensors
from tiss.methods.base import METHODS


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_state_lies_in_memory_as_its_parameter_does(tmp_path: Path, kind: str) -> None:
    """A file has no strides; the one kernel that updates all parameters at once refuses others than theirs."""
    first, second = trained(kind), trained(kind)
    write_tensors(tmp_path / "optimizer.safetensors", optimizer_tensors(first))
    load_optimizer(tmp_path, second)
    assert any(not parameter.is_contiguous() for parameter in second.state)
    for expected, (parameter, state) in zip(first.state.values(), second.state.items(), strict=True):
        kept = {key: value for key, value in state.items() if value is not None and value.ndim}
        assert kept and {value.stride() for value in kept.values()} == {parameter.stride()}
        torch.testing.assert_close(kept, {key: expected[key] for key in kept}, rtol=0, atol=0)


def trained(kind: str) -> torch.optim.Optimizer:
    """An optimizer after one update of a model laid out with channels last."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)).to(memory_format=torch.channels_last)
    made = {"adamw": torch.optim.AdamW, "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)}[kind]
    optimizer = made(model.parameters())
    model(torch.randn(2, 3, 8, 8)).square().mean().backward()
    optimizer.step()
    return optimizer


class GoesDown(BaseException):
    """The machine, in the middle of an update: nobody catches it."""


def stop(run: list[str], monkeypatch: pytest.MonkeyPatch, step: int, update: int) -> None:
    """Runs until that update of a step."""
    plain = LossLog.add

    def add(self: LossLog, iteration: int, *rest: object) -> None:
        plain(self, iteration, *rest)  # type: ignore[arg-type]
        if (self.step.index, iteration) == (step, update):
            raise GoesDown

    with monkeypatch.context() as patched:
        patched.setattr(LossLog, "add", add)
        with pytest.raises(GoesDown):
            main(run)


@pytest.fixture
def _deterministic_for_a_while() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_deterministic_for_a_while")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_stopped_within_a_step_and_resumed(
    tmp_path: Path, tiny_flags: list[str], monkeypatch: pytest.MonkeyPatch, device: str, optimizer: str
) -> None:
    flags = [device if word == "cpu" else word for word in tiny_flags]
    flags += ["--train.epochs", "12", "--train.save_every", "2", "--train.optimizer", optimizer]
    run = ["run", *flags, "--method", "mib", "--train.deterministic", "true", "--out"]
    assert main([*run, str(tmp_path / "straight")]) == 0
    stop([*run, str(tmp_path / "out")], monkeypatch, 0, 6)
    assert main([*run, str(tmp_path / "out"), "--resume"]) == 0
    for step in (0, 1):
        one, two = (tmp_path / name / f"step-{step}" / "model.safetensors" for name in ("straight", "out"))
        assert one.read_bytes() == two.read_bytes()


def test_a_damaged_file_is_one_line_with_the_remedy(
    tmp_path: Path, tiny_flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    run = ["run", *tiny_flags, "--train.epochs", "4", "--method", "recall", "--train.save_every", "2"]
    stop([*run, "--out", str(out)], monkeypatch, 1, 3)
    checkpoint = [f"checkpoint/{name}.safetensors" for name in ("model", "optimizer", "method")]
    for name, remedy in (
        *((name, "remove it to train that step again") for name in [*checkpoint, "checkpoint/state.json"]),
        ("step-0/method.safetensors", "remove it to repeat the step"),
        ("config.yaml", "config.yaml: "),
    ):
        kept = (out / name).read_bytes()
        (out / name).unlink() if name.startswith("step") else (out / name).write_bytes(b"[1]")
        assert main([*run, "--out", str(out), "--resume"]) == 2, name
        assert remedy in capsys.readouterr().err
        (out / name).write_bytes(kept)
    (out / "timing.json").write_text("[1]")  # no reason to lose a step
    assert main([*run, "--out", str(out), "--resume"]) == 0


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_model_of_own_images_that_is_just_being_put_in_place(
    moment: str, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, plain = tmp_path / "model", os.replace
    train = ["train", str(tiny_folder), "--encoder", "vit_micro_patch8", "--epochs", "2", "--device", "cpu"]

    def replace(source: Path, target: Path) -> None:
        if target == out and moment == "before":
            raise GoesDown
        plain(source, target)
        if target == out:
            raise GoesDown

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", replace)
        with pytest.raises(GoesDown):
            main([*train, "--out", str(out)])
    assert out.exists() == (moment == "after")
    assert main([*train, "--out", str(out), "--resume"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert main([*train, "--out", str(out), "--resume"]) == 0  # is finished
    assert main([*train, "--out", str(out)]) == 2


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
