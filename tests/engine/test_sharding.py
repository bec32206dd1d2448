"""Sharded training over two gloo processes: the same weights, the same files, resumed either way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.processes import Launched, same_weights
from tiss.cli.main import main

SHARD = ["--train.shard", "true"]


@pytest.fixture(scope="module")
def flags(tiny_flags: list[str]) -> list[str]:
    """AdamW, clipping and accumulation: all that a sharded optimiser could get wrong."""
    more = ["--method", "mib", "--train.optimizer", "adamw", "--train.clip", "0.5", "--train.accumulate", "2"]
    return [*tiny_flags, *more, "--train.epochs", "3", "--train.save_every", "2", "--train.encoder_lr", "0.5"]


@pytest.fixture(scope="module")
def plain(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plain") / "run"
    assert main(["run", *flags, "--out", str(out)]) == 0
    return out


def test_a_sharded_run_is_the_same_run(flags: list[str], plain: Path, tmp_path: Path):
    out = tmp_path / "run"
    launched = Launched([*flags, *SHARD, "--out", str(out)], tmp_path / "log")
    assert launched.wait() == 0, launched.output()
    for step in (0, 1):
        same_weights(plain, out, step)
    names = [sorted(path.name for path in (run / "step-1").iterdir()) for run in (plain, out)]
    assert names[0] == names[1]
    assert "Warning" not in launched.output()


def test_sharded_and_plain_runs_take_over_from_each_other(
    flags: list[str], plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Stopped in the middle of step 0, on with shards to the end of it, and without from there."""
    out = tmp_path / "run"
    stop_after_the_first_checkpoint(monkeypatch)
    assert main(["run", *flags, "--out", str(out)]) == 130
    monkeypatch.undo()
    assert (out / "checkpoint" / "state.json").exists()
    launched = Launched([*flags, *SHARD, "--out", str(out), "--resume", "--steps", "1"], tmp_path / "log")
    assert launched.wait() == 0, launched.output()
    same_weights(plain, out, 0)
    assert main(["run", *flags, "--out", str(out), "--resume"]) == 0
    same_weights(plain, out, 1)


def stop_after_the_first_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    from tiss.engine import loop

    save = loop.save_checkpoint

    def save_and_stop(*arguments: object) -> None:
        save(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "save_checkpoint", save_and_stop)
