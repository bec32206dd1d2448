"""Two processes over gloo train what one process trains on the same global batches.

One of them may be killed or meet a broken file: the run ends, and a resumed one ends with the same bytes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.processes import Launched, run_module
from tests.engine.two_processes import run_cases
from tiss.files import read_tensors
from tiss.methods.base import METHODS

# SGD: Adam divides by the gradient's size and so makes large differences of small ones
TRAIN = {"optimizer": "sgd", "lr": 0.01, "step_lr": 0.01, "batch": 4, "weight_decay": 1e-4, "warmup": 0}
CASES: dict[str, dict[str, Any]] = {
    "vit": {"method": "tiss", "train": TRAIN},
    "accumulated": {"method": "mib", "train": TRAIN | {"accumulate": 2}},
    "mit": {"method": "mib", "encoder": "mit_micro", "decoder": "linear", "train": TRAIN},
    "plop": {"method": "plop", "train": TRAIN},
    "memory": {"method": "ft", "memory": 5, "train": TRAIN},
    # SDR's terms look at each process's own images; without weight only the prototypes are left, which do not
    "sdr": {
        "method": {"name": "sdr", "matching": 0, "attraction": 0, "repulsion": 0, "sparsity": 0},
        "train": TRAIN,
    },
}
# MBS's feature distillation is a mean over each process's own trusted patches
CASES["mbs"] = {"method": {"name": "mbs", "features": 0}, "decoder": "mask", "train": TRAIN}
# trained weights differ by rounding, which solving a head makes larger: here nothing is trained
CASES["analytic"] = {"method": {"name": "analytic", "width": 64}, "train": TRAIN | {"encoder_lr": 0}}
if find_spec("timm") is not None:
    CASES["swin"] = {"method": "mib", "encoder": "swin_micro", "decoder": "linear", "train": TRAIN}
# whose losses are means over images: two processes must agree with one
EXACT = {"ft", "lwf", "ilt", "tiss", "offline", "frozen", "ploplong", "dkd", "ssul"}
EXACT |= {f"mib{more}" for more in ("", "+l1", "+l2", "+cd", "+ct")}


def start(cases: dict[str, dict[str, Any]], folder: Path) -> None:
    """Runs every case in two processes, into `folder`/<name>."""
    run_module("tests.engine.two_processes", json.dumps(cases), str(folder))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    start(CASES, two)
    run_cases(CASES, one)
    return one, two


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_what_one_does(case: str, runs: tuple[Path, Path]) -> None:
    one, two = (folder / case for folder in runs)
    assert_close_runs(one, two, case)


def assert_close_runs(one: Path, two: Path, method: str) -> None:
    """Weights, method's state and losses of every step agree; every test pixel was counted once.

    A pseudo-label hangs on whether an entropy is below the median of all: there always is a pixel at the very
    border, and rounding may tip it over. So PLOP agrees less closely once there are pseudo-labels.
    """
    for step in range(1 if method == "offline" else 3):
        tolerance = 5e-3 if method.startswith("plop") and step > 0 else 2e-5
        tolerance = 1e-3 if method == "analytic" else tolerance  # the sums agree; solving magnifies rounding
        for name in ("model", "method"):
            path = f"step-{step}/{name}.safetensors"
            assert (one / path).exists() == (two / path).exists()
            if (one / path).exists():
                assert_close(read_tensors(two / path), read_tensors(one / path), tolerance)
        counted = [
            read_tensors(run / f"step-{step}/confusion.safetensors")["confusion"] for run in (one, two)
        ]
        assert torch.equal(counted[0].sum(1), counted[1].sum(1))
    for mine, theirs in zip(metrics(one), metrics(two), strict=True):
        assert (mine["step"], mine["iteration"]) == (theirs["step"], theirs["iteration"])
        tolerance = 5e-2 if method.startswith("plop") and mine["step"] > 0 else 1e-4
        assert theirs["losses"] == pytest.approx(mine["losses"], rel=tolerance, abs=1e-6)


def metrics(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"  # not there where nothing is trained
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # a step's own head is solved from a few hundred patches here, times its count
        wide = 200 if name.startswith("own_") else 1
        torch.testing.assert_close(
            found[name],
            value,
            rtol=5 * tolerance,
            atol=wide * tolerance,
            msg=lambda text, n=name: f"{n}: {text}",
        )


@pytest.mark.slow
def test_every_method_in_two_processes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    two.mkdir()
    built_in = [name for name in METHODS if METHODS.get(name).__module__.startswith("tiss.")]
    vit = {name: {"method": name, "train": TRAIN} for name in built_in if name != "mib+frozenbn"}
    cnn = {name: {"method": name, "encoder": "resnet_micro", "train": TRAIN} for name in ("mib+frozenbn",)}
    vit["mbs"]["decoder"] = "mask"
    start(vit | cnn, two)
    exact = {name: case for name, case in vit.items() if name in EXACT}
    run_cases(exact, one)
    for name in exact:
        assert_close_runs(one / name, two / name, name)
    for name in set(vit | cnn) - set(exact):  # on a CPU, each process has batch statistics of its own
        assert json.loads((two / name / "results.json").read_text())["finished"]


@pytest.fixture(scope="module")
def long_flags(tiny_flags: list[str]) -> list[str]:
    """Two steps that take some seconds."""
    more = ["--train.epochs", "60", "--train.step_epochs", "1", "--train.log_every", "20", "--method", "mib"]
    return [*tiny_flags, *more, "--train.save_every", "20"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_process_ends_the_run_which_resumes_to_the_same_bytes(
    rank: int, long_flags: list[str], tmp_path: Path
):
    straight = Launched([*long_flags, "--out", str(tmp_path / "straight")], tmp_path / "log")
    assert straight.wait() == 0, straight.output()
    flags = [*long_flags, "--out", str(tmp_path / "run")]
    launched = Launched(flags, tmp_path / "log")
    try:
        launched.wait_for(tmp_path / "run" / "checkpoint" / "state.json")
        os.kill(launched.pid_of(rank), signal.SIGKILL)
        killed = time.monotonic()
        assert launched.wait() != 0
        assert time.monotonic() - killed < 60
    finally:
        launched.end()
    assert not (tmp_path / "run" / "results.json").exists()
    resumed = Launched([*flags, "--resume"], tmp_path / "log")
    assert resumed.wait() == 0, resumed.output()
    for name in ("step-0/model.safetensors", "step-1/model.safetensors", "results.json"):
        assert (tmp_path / "straight" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def test_an_error_in_one_process_ends_the_others_with_its_message(
    tiny_folder: Path, tiny_flags: list[str], tmp_path: Path
):
    broken = tmp_path / "data"
    shutil.copytree(tiny_folder, broken)
    flags = [str(broken) if word == str(tiny_folder) else word for word in tiny_flags]
    flags += ["--train.loader", "workers", "--train.workers", "0", "--train.epochs", "400"]
    out = tmp_path / "run"
    launched = Launched([*flags, "--out", str(out), "--train.save_every", "2"], tmp_path / "log")
    try:
        launched.wait_for(out / "checkpoint" / "state.json")
        image = sorted((broken / "images" / "train").iterdir())[0]
        image.unlink()
        assert launched.wait(60) != 0
    finally:
        launched.end()
    assert any(image.name in message for message in launched.messages())
    ours = launched.output().partition("ChildFailedError")[0].rpartition("Traceback")[0]
    assert "Traceback" not in ours  # only torchrun's own


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_process_that_hangs_ends_the_run_after_the_timeout(long_flags: list[str], tmp_path: Path):
    flags = [*long_flags, "--train.timeout", "0.1", "--out", str(tmp_path / "run")]
    launched = Launched(flags, tmp_path / "log")
    try:
        launched.wait_for(tmp_path / "run" / "checkpoint" / "state.json")
        os.kill(launched.pid_of(1), signal.SIGSTOP)
        assert launched.wait(90) != 0
    finally:
        launched.end()
    (message,) = launched.messages()
    assert message.startswith("tiss: --train.timeout 0.1: no answer from another process")


@pytest.mark.slow
def test_the_commands_for_own_images_run_in_several_processes(tiny_folder: Path, tmp_path: Path):
    common = ["--epochs", "4", "--device", "cpu"]
    train = [str(tiny_folder), "--encoder", "vit_micro_patch8", "--out", str(tmp_path / "first")]
    model = Path(__file__).parents[1] / "fixtures" / "v0_1" / "model"
    shutil.copytree(tiny_folder, tmp_path / "data")
    (tmp_path / "data" / "classes.txt").write_text("background\none\ntwo\nthree\nfour\n")  # new names
    extend = [str(model), "--data", str(tmp_path / "data"), "--out", str(tmp_path / "second")]
    for command, words in (("train", train), ("extend", extend)):
        launched = Launched([*words, *common], tmp_path / "log", module=("tiss", command))
        assert launched.wait() == 0, launched.output()
        assert (
            len(re.findall(r"^trained .* images in", launched.output(), re.M)) == 1
        )  # the first process describes
    assert {path.name for path in tmp_path.iterdir()} == {"data", "first", "second", "log"}
