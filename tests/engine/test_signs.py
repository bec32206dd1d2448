"""Signs of life: when the work behind them counts as standing still."""

from __future__ import annotations

import re

import pytest

from tiss.engine.signs import DONE, Peer, Place, Sign, beat_of, work_in
from tiss.engine.watchdog import Watchdog
from tiss.files import doing, phase
from tiss.files.phase import LEARNT, PATIENCE, STALL_TIMEOUT, Phase, Progress

HERE = Place("step (there.py:7)", may_wait=False)
MEETING = Place("all_reduce (c10d.py:9)")


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
    sign.update(beat_of(1, work, HERE), 10.0)
    assert work_in(beat_of(1, work, HERE)) == (work, HERE)
    sign.update(beat_of(2, work, HERE), 50.0)
    assert (sign.since, sign.moved) == (50.0, 10.0)
    assert not sign.is_overdue(55.0)
    assert sign.is_overdue(56.0)
    sign.update(beat_of(3, Phase("train", 8, None), HERE), 57.0)
    assert sign.waits
    sign.update(DONE, 58.0)
    assert sign.waits


def test_an_update_is_late_only_for_all_together(clock: list[float]) -> None:
    progress = Progress()
    progress.enter("train")
    assert (progress.now.patience, progress.now.together) == (None, None)
    routine(progress, clock, "train", 0.2, LEARNT + 1)
    assert (progress.now.patience, progress.now.together) == (None, STALL_TIMEOUT)
    routine(progress, clock, "train", 9.0, 2)
    assert progress.now.together == 90.0


def test_the_place_of_the_main_thread() -> None:
    place = Place.now()
    assert place.text.startswith("Place.now (signs.py:")
    assert not place.may_wait and not place.compiles


@pytest.mark.parametrize(
    ("places", "seconds", "together", "message"),
    [
        (
            [HERE, MEETING],
            46,
            45.0,
            "rank 0 .*at one update for 46 s, in step .there.py:7., while all others",
        ),
        (
            [MEETING, HERE],
            46,
            45.0,
            "rank 1 .*at one update for 46 s, in step .there.py:7., while all others",
        ),
        (
            [MEETING, MEETING],
            46,
            45.0,
            "rank 0 .*and all others .*: rank 0 in all_reduce .*, rank 1 in all_reduce",
        ),
        ([HERE, HERE], 46, 45.0, "rank 0 .*and all others .*: rank 0 in step .*, rank 1 in step"),
        ([HERE, MEETING], 44, 45.0, None),  # not late yet
        ([HERE, MEETING], 46, None, None),  # one of the first updates
        ([HERE, Place("compile (x.py:1)", False, compiles=True)], 46, 45.0, None),
    ],
)
def test_who_hangs_in_an_update(
    places: list[Place], seconds: float, together: float | None, message: str | None
) -> None:
    said: list[str] = []

    class Told(Watchdog):
        def __init__(self) -> None:
            self.signs = {
                rank: Sign("", 0.0, Phase("train", 9, None, together), 0.0, place)
                for rank, place in enumerate(places)
            }
            self.peers = {1: Peer(1, "host", "machine", 7, "")}

        def _sentence(self, who: Peer | int, what: str, kill: bool = False) -> None:
            said.append(f"{who} {what}")

    Told()._look_at_updates(seconds)
    assert len(said) == (message is not None)
    assert message is None or re.search(message, said[0])


def test_one_process_in_its_first_update_is_waited_for() -> None:
    class Told(Watchdog):
        def __init__(self) -> None:
            known, first = Phase("train", 9, None, 45.0), Phase("train", 9, None, None)
            self.signs = {0: Sign("", 0.0, known, 0.0, MEETING), 1: Sign("", 0.0, first, 0.0, HERE)}

    Told()._look_at_updates(1000.0)
