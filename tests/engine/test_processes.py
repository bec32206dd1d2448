"""Two processes under torchrun: one of them dies, hangs or fails, and the whole run ends with its name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.engine.processes import Launched, same_weights
from tiss.cli.main import main

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
PEER_TIMEOUT = 6.0  # seconds; less would mistake a busy machine for a hang


@pytest.fixture(scope="module")
def long_flags(tiny_flags: list[str]) -> list[str]:
    """Two steps that last some seconds."""
    more = ["--train.epochs", "60", "--train.step_epochs", "1", "--train.log_every", "20", "--method", "mib"]
    return [*tiny_flags, *more, "--train.save_every", "20"]


@pytest.fixture(scope="module")
def straight(long_flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run never hurt, in one process."""
    out = tmp_path_factory.mktemp("straight") / "run"
    assert main(["run", *long_flags, "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize(
    ("blow", "rank"),
    [
        (signal.SIGKILL, 1),
        (signal.SIGSTOP, 1),
        pytest.param(signal.SIGKILL, 0, marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, 0, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_dies_or_hangs_ends_the_run(
    blow: signal.Signals, rank: int, long_flags: list[str], straight: Path, tmp_path: Path
):
    out = tmp_path / "run"
    flags = [*long_flags, "--out", str(out)]
    launched = Launched(flags, tmp_path / "log", TISS_PEER_TIMEOUT=str(PEER_TIMEOUT))
    try:
        launched.wait_for(out / "checkpoint" / "state.json")
        victim = launched.pid_of(rank)
        os.kill(victim, blow)
        start = time.monotonic()
        assert launched.wait() != 0
        assert time.monotonic() - start < 60
    finally:
        launched.end()
    (message,) = launched.messages()
    assert f"rank {rank} (process {victim} on " in message
    assert ("no sign of life" if blow == signal.SIGSTOP else "ended without a word") in message
    assert "--resume" in message
    assert not (out / "results.json").exists()
    assert main(["run", *flags, "--resume"]) == 0  # another number of processes
    for step in (0, 1):
        same_weights(straight, out, step)
    scores = [json.loads((run / "results.json").read_text())["steps"] for run in (straight, out)]
    assert [s["train_images"] for s in scores[0]] == [s["train_images"] for s in scores[1]]


@pytest.mark.parametrize(
    ("rank", "where"),
    [
        (1, "read"),
        (1, "loss"),
        pytest.param(0, "read", marks=pytest.mark.slow),
        pytest.param(0, "loss", marks=pytest.mark.slow),
    ],
)
def test_a_rank_whose_work_stands_still_is_named(
    rank: int, where: str, long_flags: list[str], straight: Path, tmp_path: Path
):
    """Its threads live on and beat; only the one that works sleeps, and the other rank waits for it."""
    flags = [*long_flags, "--out", str(tmp_path / "run")]
    flags += ["--train.loader", "workers", "--train.workers", "0"]
    message = named_while_asleep(rank, where, flags, tmp_path)
    assert ("has been at 'data' for" if where == "read" else "has been at one update for") in message
    assert where == "read" or "in sleepy.<locals>.call (sleeping_rank.py:" in message
    assert main(["run", *flags, "--resume"]) == 0
    for step in (0, 1):
        same_weights(straight, tmp_path / "run", step)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "more"),
    [
        ("forward", ["--model.encoder", "resnet_micro"]),  # the other one waits in a batch norm
        ("forward", ["--train.shard", "true"]),  # … for a weight
        ("loss", ["--train.shard", "true", "--train.clip", "1.0"]),
        ("prototypes", ["--method", "sdr"]),
    ],
)
def test_a_rank_that_hangs_in_other_kinds_of_update(
    where: str, more: list[str], long_flags: list[str], tmp_path: Path
):
    flags = [*long_flags, "--out", str(tmp_path / "run"), *more]
    assert "has been at one update for" in named_while_asleep(1, where, flags, tmp_path)


def named_while_asleep(rank: int, where: str, flags: list[str], folder: Path) -> str:
    """What the run says before it ends, since `rank` falls asleep."""
    module = ("tests.engine.sleeping_rank", str(rank), where)
    start = time.monotonic()
    launched = Launched(flags, folder / "log", module=module, TISS_STALL_TIMEOUT="4")
    try:
        assert launched.wait(100) != 0
    finally:
        launched.end()
    assert f"rank {rank} sleeps" in launched.output()
    (message,) = launched.messages()
    assert f"rank {rank} (process " in message
    assert "while all others wait for it" in message
    assert "--resume" in message
    assert time.monotonic() - start < 90
    return message


def test_long_work_that_is_not_routine_is_left_alone(long_flags: list[str], tmp_path: Path):
    """The first rank takes far longer over a checkpoint than the limit for routine work."""
    out = tmp_path / "run"
    module = ("tests.engine.sleeping_rank", "0", "checkpoint")
    flags = [*long_flags, "--out", str(out)]
    launched = Launched(flags, tmp_path / "log", module=module, TISS_STALL_TIMEOUT="1")
    try:
        deadline = time.monotonic() + 100
        while "rank 0 sleeps" not in launched.output():
            assert time.monotonic() < deadline, launched.output()
            time.sleep(0.1)
        time.sleep(6)
        assert launched.process.poll() is None
    finally:
        launched.end()
    assert launched.messages() == []


def test_a_picture_that_breaks_for_one_rank(tiny_folder: Path, tiny_flags: list[str], tmp_path: Path):
    broken = tmp_path / "data"
    shutil.copytree(tiny_folder, broken)
    flags = [str(broken) if word == str(tiny_folder) else word for word in tiny_flags]
    flags += ["--train.loader", "workers", "--train.workers", "0", "--train.epochs", "400"]
    out = tmp_path / "run"
    launched = Launched([*flags, "--out", str(out), "--train.save_every", "2"], tmp_path / "log")
    try:
        launched.wait_for(out / "checkpoint" / "state.json")
        picture = sorted((broken / "images" / "train").iterdir())[0]
        picture.unlink()
        assert launched.wait(60) != 0
    finally:
        launched.end()
    (message,) = launched.messages()
    assert picture.name in message


@pytest.mark.slow
def test_four_processes_are_one(tiny_flags: list[str], tmp_path: Path):
    flags = [*tiny_flags, "--method", "tiss", "--train.epochs", "3"]
    assert main(["run", *flags, "--out", str(tmp_path / "one")]) == 0
    launched = Launched([*flags, "--out", str(tmp_path / "four")], tmp_path / "log", processes=4)
    assert launched.wait() == 0, launched.output()
    for step in (0, 1):
        same_weights(tmp_path / "one", tmp_path / "four", step)
