"""Fine-tuning forgets the first classes; every other method keeps them. Where a sign is wrong, it shows here."""

from __future__ import annotations

import pytest

from tests.methods.toy import toy_config
from tiss.engine.learner import Learner
from tiss.engine.progress import Reporter
from tiss.engine.run import open_scenario
from tiss.methods.base import METHODS

LONG = {"epochs": 60, "step_epochs": 30, "batch": 4, "lr": 2e-3, "step_lr": 1e-3}
KEEPING = [
    name
    for name in METHODS
    if METHODS.get(name).__module__.startswith("tiss.") and name not in ("ft", "offline", "mib+frozenbn")
]


def kept(method: str) -> float:
    """IoU of the first two classes after the last step, as a share of what it was after step 0."""
    config, scenario = open_scenario(toy_config(method, train=LONG))
    learner = Learner(config=config, reporter=Reporter())
    means = []
    for step in scenario:
        learner.fit(step)
        found = learner.evaluate(step.test).iou
        means.append(sum(found[name] or 0.0 for name in scenario[0].new_classes) / 2)
    assert means[0] > 40
    return means[-1] / means[0]


@pytest.mark.slow
def test_fine_tuning_forgets() -> None:
    assert kept("ft") < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("method", KEEPING)
def test_the_others_remember(method: str) -> None:
    assert kept(method) > 0.7
