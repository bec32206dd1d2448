"""Signs of life: when the work behind them counts as standing still."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tiss.engine.signs import DONE, Place, Sign, beat_of, work_in
from tiss.engine.stalls import find_stall
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


def test_an_update_goes_on_as_one_of_many_after_a_wait(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    progress = Progress()
    monkeypatch.setattr(phase, "progress", progress)
    for name in ("train", "evaluate"):
        routine(progress, clock, name, 0.2, LEARNT + 2)
        before = progress.now
        with doing("wait"):
            assert progress.now.name == "wait"
        known = (progress.now.patience, progress.now.together)
        assert known == ((None, before.together) if name == "train" else (PATIENCE, None))


def test_another_run_begins_anew(clock: list[float]) -> None:
    progress = Progress()
    routine(progress, clock, "train", 0.2, 2 * LEARNT)
    progress.enter("train", "train", turn=(3, 70))
    progress.forget()
    progress.enter("train", "train")
    assert (progress.now.together, progress.now.turn) == (None, (-1, -1))


def test_the_place_of_the_main_thread() -> None:
    place = Place.now()
    assert place.text.startswith("Place.of (signs.py:")
    assert not place.may_wait and not place.compiles


def place_below(path: str, name: str = "work") -> Place:
    """The place of a thread whose innermost call is of this name, in a file of this path."""
    scope: dict[str, Any] = {}
    exec(compile(f"def {name}(begun, end):\n    begun.set()\n    end()\n", path, "exec"), scope)
    begun, end = threading.Event(), threading.Lock()
    end.acquire()
    thread = threading.Thread(target=scope[name], args=(begun, end.acquire))
    thread.start()
    begun.wait()
    try:
        return Place.of(thread)
    finally:
        end.release()
        thread.join()


@pytest.mark.parametrize(
    ("path", "name", "may_wait", "compiles"),
    [
        ("/x/tiss/methods/mib.py", "losses", False, False),
        ("/x/torch/distributed/distributed_c10d.py", "all_reduce", True, False),
        ("/x/torch/autograd/graph.py", "_engine_run_backward", True, False),
        ("/x/torch/_dynamo/eval_frame.py", "call", False, False),  # below every compiled call
        ("/x/torch/_dynamo/convert_frame.py", "call", False, True),
        ("/x/triton/compiler/compiler.py", "compile", False, True),
    ],
)
def test_what_a_place_says(path: str, name: str, may_wait: bool, compiles: bool) -> None:
    place = place_below(path, name)
    assert place.text == f"{name} ({path.rpartition('/')[2]}:3)"
    assert (place.may_wait, place.compiles) == (may_wait, compiles)
    assert not Place.now().compiles


def sign(place: Place, together: float | None = 45.0, turn: int = 70, work: str = "train") -> Sign:
    patience = None if work in ("train", "wait") else 45.0
    return Sign("", 0.0, Phase(work, 9, patience, together, (0, turn)), 0.0, place)


COMPILING = Place("compile (x.py:1)", False, compiles=True)


@pytest.mark.parametrize(
    ("signs", "seconds", "rank", "said"),
    [
        (
            [sign(HERE), sign(MEETING)],
            46,
            0,
            "at one update for 46 s, in step (there.py:7), while all others",
        ),
        (
            [sign(MEETING), sign(HERE)],
            46,
            1,
            "at one update for 46 s, in step (there.py:7), while all others",
        ),
        ([sign(MEETING), sign(MEETING), sign(HERE)], 46, 2, "at one update for 46 s"),
        (
            [sign(MEETING), sign(MEETING)],
            46,
            None,
            "all processes have been at one update for 46 s: rank 0 in all_red",
        ),
        (
            [sign(HERE), sign(HERE)],
            46,
            None,
            "all processes have been at one update for 46 s: rank 0 in step",
        ),
        (
            [sign(HERE, turn=72), sign(HERE)],
            46,
            1,
            "at one update for 46 s, in step",
        ),  # the first one ran ahead
        ([sign(HERE, turn=72, work="data"), sign(HERE)], 46, 1, "at one update for 46 s, in step"),
        ([sign(HERE, work="data"), sign(MEETING)], 46, 0, "at 'data' for 46 s while all others wait"),
        (
            [sign(HERE, work="data"), sign(MEETING, work="wait")],
            46,
            0,
            "at 'data' for 46 s while all others wait",
        ),
    ],
)
def test_who_hangs(signs: list[Sign], seconds: float, rank: int | None, said: str) -> None:
    found = find_stall(dict(enumerate(signs)), seconds)
    assert found is not None
    assert found.rank == rank
    assert said in found.what


@pytest.mark.parametrize(
    ("signs", "seconds"),
    [
        ([sign(HERE), sign(MEETING)], 44),  # not late yet
        ([sign(HERE, None), sign(MEETING)], 1000),  # one of the first updates of one process
        ([sign(HERE), sign(COMPILING)], 1000),
        ([sign(HERE, turn=72, work="data"), sign(COMPILING)], 1000),
        ([sign(HERE, turn=72, work="data"), sign(HERE, None)], 1000),
        ([sign(MEETING, work="wait"), sign(MEETING, work="wait")], 1000),
    ],
)
def test_nobody_hangs(signs: list[Sign], seconds: float) -> None:
    assert find_stall(dict(enumerate(signs)), seconds) is None
