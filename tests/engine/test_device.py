"""The device, the other processes, determinism and compilation."""

import copy
import json
import os
from pathlib import Path
from unittest import mock

import pytest
import torch

from tiss.cli.main import main
from tiss.config import ModelConfig, TrainConfig
from tiss.engine.bench import fits
from tiss.engine.device import World, check_tracker, choose_device, make_fast
from tiss.errors import TissError
from tiss.models import build_model


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    torch.use_deterministic_algorithms(False)


def test_a_process_alone():
    world = World(TrainConfig(device="cpu"))
    assert (world.rank, world.size, world.is_main) == (0, 1, True)
    model = torch.nn.Linear(2, 2)
    assert world.wrap(model) is model
    world.wait()


def test_a_batch_that_does_not_divide_is_refused():
    world = World(TrainConfig(device="cpu"))
    assert world.share_of(12, 3) == 4
    with pytest.raises(TissError, match="use 9") as found:
        world.share_of(10, 3)
    assert found.value.setting == "train.batch"


def test_devices_and_trackers_that_are_not_there():
    assert choose_device("cpu") == "cpu"
    with pytest.raises(TissError, match="not 'gpu'"):
        choose_device("gpu")
    check_tracker(None)
    with pytest.raises(TissError, match="did you mean 'tensorboard'"):
        check_tracker("tensorbord")


def test_a_run_that_asks_for_determinism_gets_it() -> None:
    World(TrainConfig(device="cpu", deterministic=True))
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_an_operation_without_a_deterministic_form_is_one_line() -> None:
    torch.use_deterministic_algorithms(True)
    world = World(TrainConfig(device="cpu"))
    with pytest.raises(TissError, match="set it to false") as found, world.failures_explained():
        torch.empty(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]), accumulate=False)
    assert found.value.setting == "train.deterministic"
    with pytest.raises(RuntimeError, match="another"), world.failures_explained():
        raise RuntimeError("another")


@pytest.mark.parametrize(
    ("problem", "message", "setting"),
    [
        (RuntimeError("[gloo] Connection closed by peer"), "its own message", None),
        (torch.distributed.DistNetworkError("connection lost"), "its own message", None),
        (RuntimeError("[gloo] Timed out waiting 180000ms"), "3: no answer", "train.timeout"),
    ],
)
def test_messages_about_other_processes(problem: Exception, message: str, setting: str | None) -> None:
    world = World(TrainConfig(device="cpu", timeout=3))
    world.size = 2
    with pytest.raises(TissError, match=message) as found, world.failures_explained():
        raise problem
    assert found.value.setting == setting
    for other in (RuntimeError("size mismatch"), KeyError("gloo")):
        with pytest.raises(type(other)), world.failures_explained():
            raise other


def test_bench_of_a_solved_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    words = ["bench", "--suite", "solve-small", "--updates", "3", "--device", "cpu", "--out", str(out)]
    assert main(words) == 0
    assert "one solved step on cpu" in capsys.readouterr().out
    (row,) = json.loads(out.read_text())["solve"]
    assert row["share"] == pytest.approx(row["pass_images_per_second"] / row["encoder_images_per_second"])
    assert row["state_mb"] > 8 and row["solve_seconds"] > 0 and row["peak_gib"] is None


def test_its_cost_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    words = ["bench", "--suite", "small", "--updates", "5", "--device", "cpu", "--out", str(out)]
    assert main([*words, "--deterministic", "true"]) == 0
    assert "toy: deterministic takes" in capsys.readouterr().out
    (row,) = json.loads(out.read_text())["rows"]
    expected = row["deterministic"]["milliseconds"] / row["fast"]["milliseconds"] - 1
    assert row["cost_of_determinism"] == pytest.approx(expected)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_memory_of_a_gpu_is_not_measured_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert fits((2, 6), (9.0, 10.0))["largest_batch"]["8"] == 0
    with mock.patch("torch.cuda.is_available", return_value=False):
        assert main(["bench", "--suite", "memory"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.gpu
def test_on_a_gpu_two_runs_have_the_same_weights(tmp_path: Path, tiny_flags: list[str]) -> None:
    flags = [word if word != "cpu" else "cuda" for word in tiny_flags]
    for name in ("one", "two"):
        words = ["run", *flags, "--method", "tiss", "--train.deterministic", "true"]
        assert main([*words, "--out", str(tmp_path / name)]) == 0
    for step in (0, 1):
        one, two = (tmp_path / name / f"step-{step}" / "model.safetensors" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_compiling_keeps_names_and_copies():
    model = build_model(ModelConfig(encoder="vit_micro_patch8"), ["background", "a"], 32)
    names = list(model.state_dict())
    train = TrainConfig(device="cpu", compile="on")
    make_fast(model, train, World(train))
    assert list(model.state_dict()) == names
    assert list(copy.deepcopy(model).state_dict()) == names
