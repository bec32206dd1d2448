"""What an optimizer gets back from a file, and a run that is stopped within a step."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tiss.cli.main import main
from tiss.engine.checkpoint import load_optimizer, optimizer_tensors
from tiss.engine.loop import LossLog
from tiss.files import write_tensors


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
