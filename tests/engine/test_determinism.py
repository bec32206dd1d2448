"""Determinism: switched on for a while, refused in one line, and timed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from tiss.cli.main import main
from tiss.config import TrainConfig
from tiss.engine.determinism import deterministic, refusals_explained
from tiss.engine.world import World
from tiss.errors import TissError


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    torch.use_deterministic_algorithms(False)


def test_switched_on_for_a_while() -> None:
    with deterministic("cpu"):
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_run_that_asks_for_it_gets_it() -> None:
    World(TrainConfig(device="cpu", deterministic=True))
    assert torch.are_deterministic_algorithms_enabled()


def test_an_operation_without_a_deterministic_form_is_one_line() -> None:
    torch.use_deterministic_algorithms(True)
    world = World(TrainConfig(device="cpu"))
    with pytest.raises(TissError, match=r"--train.deterministic true: .*set it to false"), world.together():
        torch.empty(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]), accumulate=False)
    with pytest.raises(RuntimeError, match="another"), refusals_explained():
        raise RuntimeError("another")


def test_its_cost_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    words = ["bench", "--suite", "small", "--updates", "5", "--device", "cpu", "--out", str(out)]
    assert main([*words, "--deterministic", "true"]) == 0
    assert "toy: deterministic takes" in capsys.readouterr().out
    (row,) = json.loads(out.read_text())["rows"]
    expected = row["deterministic"]["milliseconds"] / row["fast"]["milliseconds"] - 1
    assert row["cost_of_determinism"] == pytest.approx(expected)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_same_weights_twice_whatever_loads_the_data(tmp_path: Path, tiny_flags: list[str]) -> None:
    loaders = (("workers", "0"), ("workers", "0"), ("workers", "1"), ("workers", "2"), ("memory", "1"))
    found = set()
    for number, (kind, workers) in enumerate(loaders):
        out = tmp_path / str(number)
        words = ["run", *tiny_flags, "--method", "tiss", "--train.loader", kind, "--train.workers", workers]
        assert main([*words, "--out", str(out)]) == 0
        names = [f"step-{step}/model.safetensors" for step in (0, 1)] + ["results.json"]
        found.add(tuple((out / name).read_bytes() for name in names))
    assert len(found) == 1


@pytest.mark.gpu
def test_on_a_gpu_two_runs_have_the_same_weights(tmp_path: Path, tiny_flags: list[str]) -> None:
    flags = [word if word != "cpu" else "cuda" for word in tiny_flags]
    for name in ("one", "two"):
        words = ["run", *flags, "--method", "tiss", "--train.deterministic", "true"]
        assert main([*words, "--out", str(tmp_path / name)]) == 0
    for step in (0, 1):
        one, two = (tmp_path / name / f"step-{step}" / "model.safetensors" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
