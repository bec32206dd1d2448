"""The headline: it says keep only of what was kept."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.report.fakes import results
from tiss.report.runs import Experiment, experiments, load_results
from tiss.report.story import MEASURE, story


def run(method: str, first: float, last: float) -> dict[str, Any]:
    """A run whose classes of step 0 go from one mIoU to another."""
    values = results(method)
    for step, value in zip(values["steps"], (first, last, last), strict=True):
        step["scores"]["old"] = dict.fromkeys(step["scores"]["old"], value)
    return values


@pytest.fixture
def experiment() -> Experiment:
    runs = [run("ft", 78.4, 0.5), run("mib", 78.4, 77.3), run("tiss", 78.4, 74.5), results("offline")]
    return experiments(load_results(runs))[0]


def test_the_story(experiment: Experiment) -> None:
    (bad, forgets), (good, keeps), (bound, offline) = story(experiment)
    assert (bad, good, bound) == ("bad", "good", "bound")
    assert re.fullmatch(r"FT \(\d\d\.\d → \d\.\d\) forgets the first 4 classes\.", forgets)
    assert re.fullmatch(r"MiB \(.*\) and TISS \(.*\) keep them\.", keeps)
    assert offline.startswith("Offline training on everything at once reaches")


def test_what_was_never_learnt_is_not_forgotten() -> None:
    poor = results("mib")
    for step in poor["steps"]:
        step["scores"]["old"] = dict.fromkeys(step["scores"]["old"], 1.0)
    (found,) = experiments(load_results([poor]))
    assert story(found) == [
        (
            "bound",
            f"MiB (1.0 → 1.0) hardly learnt the first {len(found.groups[0])} classes: nothing to forget.",
        )
    ]


def test_without_forgetting_the_story_says_so() -> None:
    ((kind, text),) = story(experiments(load_results([run("tiss", 70.0, 70.0)]))[0])
    assert kind == "good"
    assert text.endswith("keeps the first 4 classes.")


def test_who_lost_a_sixth_does_not_keep() -> None:
    runs = [run("ft", 78.4, 0.5), run("ilt", 78.4, 61.8), run("plop", 78.4, 65.5), run("mib", 78.4, 77.3)]
    assert story(experiments(load_results(runs))[0]) == [
        ("bad", "FT (78.4 → 0.5) forgets the first 4 classes."),
        ("part", "ILT (78.4 → 61.8) and PLOP (78.4 → 65.5) lose part of them."),
        ("good", "MiB (78.4 → 77.3) keeps them."),
    ]
    assert story(experiments(load_results(runs[1:2]))[0]) == [
        ("part", "ILT (78.4 → 61.8) loses part of the first 4 classes.")
    ]
    assert "at most 5 %" in MEASURE and "more than 40 %" in MEASURE


def test_runs_under_way_are_not_judged() -> None:
    begun = results("mib", finished=False)
    begun["steps"] = begun["steps"][:2]
    (found,) = experiments(load_results([results("ft"), begun]))
    assert "MiB" not in " ".join(sentence for _, sentence in story(found))  # it may forget yet
