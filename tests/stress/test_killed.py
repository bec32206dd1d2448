"""A run that is killed at any moment, again and again, resumes to the same bytes as the run never killed.

TISS_STRESS=20 makes it twenty times as many kills.
"""

from __future__ import annotations

import random
import signal

import pytest

from tests.stress.conftest import Trial
from tests.stress.runs import POINTS, STRESS, Kill

QUICK = ("sync", "update")
ALL = [pytest.param(point, marks=() if point in QUICK else pytest.mark.slow) for point in POINTS]


@pytest.mark.parametrize("point", ALL)
def test_killed_runs_resume_to_the_same_bytes(point: str, trial: Trial) -> None:
    assert trial.calls[point] > 1, "the run does not pass this point"
    chance, out = random.Random(point), trial.work / point
    for _ in range(STRESS):
        kills = 0
        while kills < 3:
            kill = Kill(point, chance.randint(1, 1 + trial.calls[point] // 2), chance.random() < 0.5)
            workers = 0 if point == "read" else chance.choice((0, 0, 1))  # else it is the workers that read
            code, text = trial.run(out, kill, workers)
            if code == 0:  # what was left to do had fewer calls
                break
            assert code == -signal.SIGKILL, text[-800:]
            kills += 1
        assert kills
        trial.finish(out)
