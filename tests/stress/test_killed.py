"""A run that is killed at any moment, again and again, resumes to the same bytes as the run never killed.

TISS_STRESS=20 makes it twenty times as many kills.
"""

import random
import signal
from itertools import product

import pytest

from tests.stress.conftest import Trial
from tests.stress.runs import COMMANDS, POINTS, STRESS, Kill

QUICK = [("run", "sync"), ("run", "update"), ("extend", "sync")]
SLOW = [
    pytest.param(*pair, marks=pytest.mark.slow) for pair in product(COMMANDS, POINTS) if pair not in QUICK
]


@pytest.mark.parametrize(("trial", "point"), [*QUICK, *SLOW], indirect=["trial"])
def test_killed_runs_resume_to_the_same_bytes(trial: Trial, point: str) -> None:
    assert trial.calls[point] > 1, "the run does not pass this point"
    chance, out = random.Random(f"{trial.command} {point}"), trial.work / point
    for _ in range(STRESS):
        for kills in range(4):
            count = chance.randint(1, 1 + trial.calls[point] // 2) if kills < 3 else 0
            workers = 0 if point == "read" else chance.choice((0, 0, 1))  # else it is the workers that read
            code, text = trial.run(out, Kill(point, count, chance.random() < 0.5), workers)
            if code == 0:  # what was left to do had fewer calls
                break
            assert code == -signal.SIGKILL, text[-800:]
        assert kills
        trial.check(out)
