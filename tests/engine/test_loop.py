"""Runs that meet broken images and broken losses, and runs that must come out the same to the last bit."""

import json
import shutil
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods.toy import toy_config
from tiss.cli.main import main
from tiss.data.base import Batch
from tiss.data.loader import TrainLoader
from tiss.engine.progress import Reporter
from tiss.engine.run import open_run, run_experiment
from tiss.engine.session import Learner
from tiss.errors import TissError
from tiss.files import read_tensors
from tiss.methods.base import METHODS
from tiss.models import build_model
from tiss.scenarios import load_scenario


@pytest.fixture
def own_data(tiny_folder: Path, tiny_flags: list[str], tmp_path: Path) -> tuple[Path, list[str]]:
    """A copy of the tiny data set that a test may damage, and the flags for it."""
    root = tmp_path / "data"
    shutil.copytree(tiny_folder, root)
    return root, [str(root) if word == str(tiny_folder) else word for word in tiny_flags]


@pytest.fixture
def breaking(own_data: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Removes one training image and cuts off another once the first epoch is asked for, after every check."""
    ids = load_scenario("folder", root=own_data[0], task="2-2")[0].train.ids
    images = [own_data[0] / "images" / "train" / f"{id}.png" for id in ids[:2]]
    epoch = TrainLoader.epoch

    def break_then_load(self: TrainLoader, *arguments: Any, **named: Any) -> Iterator[Batch]:
        images[0].unlink(missing_ok=True)
        images[1].write_bytes(images[1].read_bytes()[:90])
        return epoch(self, *arguments, **named)

    monkeypatch.setattr(TrainLoader, "epoch", break_then_load)
    return images


@pytest.mark.parametrize("workers", ["0", "1"])
def test_an_image_that_breaks_stops_the_run_with_its_name(
    workers: str, own_data: tuple[Path, list[str]], breaking: list[Path], tmp_path: Path, capsys
):
    flags = [*own_data[1], "--train.loader", "workers", "--train.workers", workers, "--train.epochs", "3"]
    assert main(["run", *flags, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert any(image.name in error for image in breaking)


def test_an_image_broken_before_the_start(own_data: tuple[Path, list[str]], tmp_path: Path, capsys):
    root, flags = own_data
    train, test = (sorted((root / "images" / split).iterdir())[0] for split in ("train", "test"))
    train.unlink()
    test.write_bytes(test.read_bytes()[:90])
    assert main(["run", *flags, "--out", str(tmp_path / "stop")]) == 2
    assert train.stem in capsys.readouterr().err
    out = tmp_path / "skip"
    assert main(["run", *flags, "--data.on_error", "skip", "--out", str(out)]) == 0
    assert train.stem in capsys.readouterr().err
    left_out = json.loads((out / "environment.json").read_text())["data_left_out"]
    assert {split: len(problems) for split, problems in left_out.items()} == {"train": 1, "test": 1}


def test_a_loss_that_is_not_finite(tiny_flags: list[str], tmp_path: Path, monkeypatch, capsys):
    long = [*tiny_flags, "--method", "mib", "--train.epochs", "6", "--train.save_every", "2"]
    straight, out = tmp_path / "straight", tmp_path / "out"
    assert main(["run", *long, "--out", str(straight)]) == 0
    method, factors = METHODS.get("mib"), chain([1.0] * 5, repeat(float("nan")))
    plain = method.losses

    def losses(*inputs: Any) -> dict[str, Tensor]:
        factor = next(factors)
        return {name: term * factor for name, term in plain(*inputs).items()}

    with monkeypatch.context() as patched:
        patched.setattr(method, "losses", losses)
        assert main(["run", *long, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "not finite" in error and "train.lr" in error
    found = json.loads((out / "nonfinite-0.json").read_text())
    assert (found["step"], found["iteration"], found["seed"]) == (0, 5, 0)
    assert len(found["ids"]) == 4
    assert found["losses"] == {"cross_entropy": "nan"}
    position = json.loads((out / "checkpoint" / "state.json").read_text())["position"]
    assert position["iteration"] == 4  # the last good one
    assert main(["run", *long, "--out", str(out), "--resume"]) == 0
    assert not (out / "nonfinite-0.json").exists()
    for step in (0, 1):
        weights = [(run / f"step-{step}" / "model.safetensors").read_bytes() for run in (straight, out)]
        assert weights[0] == weights[1]


def test_the_same_weights_twice_whatever_loads_the_data(tiny_flags: list[str], tmp_path: Path):
    loaders = (("workers", "0"), ("workers", "0"), ("workers", "1"), ("workers", "2"), ("memory", "0"))
    flags = [*tiny_flags, "--method", "tiss", "--data.photometric", "true", "--model.drop_path", "0.2"]
    found = set()
    for number, (kind, workers) in enumerate(loaders):
        out = tmp_path / str(number)
        words = ["run", *flags, "--train.loader", kind, "--train.workers", workers]
        assert main([*words, "--out", str(out)]) == 0
        names = [f"step-{step}/model.safetensors" for step in (0, 1)] + ["results.json"]
        found.add(tuple((out / name).read_bytes() for name in names))
    assert len(found) == 1


def test_an_update_in_parts_is_the_same_update(tmp_path: Path) -> None:
    """And the rates of a step rise, then fall to nothing; SGD, since Adam makes large differences of small ones."""
    train = {"optimizer": "sgd", "lr": 0.01, "step_lr": 0.01, "power": 1.0}
    train |= {"batch": 4, "epochs": 7, "warmup": 9}  # 21 updates, so that the warm-up is cut to 2
    lines, weights = [], []
    for parts in (1, 2):
        out = tmp_path / str(parts)
        config = toy_config("mib", train=train | {"accumulate": parts}, out=str(out))
        run_experiment(config, reporter=Reporter(), steps=2)
        lines.append([json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()])
        weights.append(read_tensors(out / "step-1" / "model.safetensors"))
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)
    for whole, cut in zip(*lines, strict=True):
        assert cut["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    rates = [line["rate_factor"] for line in lines[0] if line["step"] == 0]
    assert rates == pytest.approx([0.5, 1.0, *(1 - update / 21 for update in range(2, 21))])


def test_a_step_that_does_not_follow_from_the_model_is_refused() -> None:
    scenario = open_run(toy_config("mib")).scenario
    learner = Learner(config=toy_config("mib", train={"encoder_lr": 0.0}), reporter=Reporter())
    learner.fit(scenario[0])
    fresh = build_model(learner.config.model, learner.model.classes, 32, seed=0)
    for name, tensor in fresh.encoder.state_dict().items():  # at a rate of 0 it is frozen
        assert torch.equal(learner.model.encoder.state_dict()[name], tensor)
    with pytest.raises(TissError, match="step 2 starts from 4 channels, the model has 3"):
        learner.fit(scenario[2])
