"""Signs of life: when the work behind them counts as standing still."""

from __future__ import annotations

import pytest

from tiss.engine.signs import DONE, Sign, beat_of, phase_in
from tiss.files import doing, phase
from tiss.files.phase import LEARNT, PATIENCE, STALL_TIMEOUT, Phase, Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(phase.time, "monotonic", lambda: now[0])
    return now


def routine(progress: Progress, clock: list[float], name: str, seconds: float, times: int) -> None:
    for _ in range(times):
        progress.enter(name, name)
        clock[0] += seconds


def test_only_routine_work_is_expected_soon(clock: list[float]) -> None:
    progress = Progress()
    progress.enter("data")
    assert progress.now.patience == PATIENCE
    routine(progress, clock, "data", 0.1, LEARNT)
    assert progress.now.patience == PATIENCE  # not known yet how long it takes
    progress.enter("data", "data")
    assert progress.now.patience == STALL_TIMEOUT
    progress.enter("data")  # the first of a step
    assert progress.now.patience == PATIENCE


def test_slow_work_gets_the_time_it_is_known_to_need(clock: list[float]) -> None:
    progress = Progress()
    routine(progress, clock, "evaluate", 20.0, LEARNT + 1)
    progress.enter("evaluate", "evaluate")
    assert progress.now.patience == 200.0
    routine(progress, clock, "checkpoint", 1.0, LEARNT + 1)
    assert progress.now.patience == phase.CHECKPOINT_TIMEOUT


def test_who_waits_is_never_overdue(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    progress = Progress()
    monkeypatch.setattr(phase, "progress", progress)
    progress.enter("train")
    assert progress.now.patience is None
    progress.enter("between")
    with doing("wait"):
        assert progress.now == Phase("wait", 3, None)
    assert progress.now == Phase("between", 4, PATIENCE)


def test_a_sign_moves_with_the_work_and_not_with_the_beat() -> None:
    sign = Sign("", 0.0)
    assert sign.waits
    work = Phase("data", 7, 45.0)
    sign.update(beat_of(1, work), 10.0)
    assert phase_in(beat_of(1, work)) == work
    sign.update(beat_of(2, work), 50.0)
    assert (sign.since, sign.moved) == (50.0, 10.0)
    assert not sign.is_overdue(55.0)
    assert sign.is_overdue(56.0)
    sign.update(beat_of(3, Phase("train", 8, None)), 57.0)
    assert sign.waits
    sign.update(DONE, 58.0)
    assert sign.waits
