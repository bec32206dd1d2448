"""Scores against hand-made values and an independent reference."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiss.evaluation.scores import (
    Mean,
    Scores,
    forgetting,
    harmonic_mean,
    mean,
    percent,
    run_scores,
    scores_from_confusion,
    without_zeros,
)

CLASSES = ("background", "cat", "dog", "cow")
GROUPS = ((1, 2), (3,))
# true rows: 8 background, 4 cat, no dog, 2 cow. IoU: 6/9, 3/6, none, 1/3
MATRIX = torch.tensor([[6, 2, 0, 0], [1, 3, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]])


def test_hand_made_example() -> None:
    scores = scores_from_confusion(MATRIX, CLASSES, GROUPS)
    assert list(scores.iou.values()) == [
        pytest.approx(100 * 6 / 9),
        pytest.approx(50),
        None,
        pytest.approx(50),
    ]
    assert scores.absent == ("dog",)
    assert scores.old == Mean(pytest.approx((600 / 9 + 50) / 2), pytest.approx(50))
    assert scores.new == Mean(pytest.approx(50), pytest.approx(50))
    assert scores.all == Mean(pytest.approx((600 / 9 + 100) / 3), pytest.approx(50))
    assert scores.groups == (scores.old, scores.new)
    assert scores.harmonic.without_background == pytest.approx(50)
    assert scores.pixel_accuracy == pytest.approx(100 * 10 / 14)


def test_means_without_zeros_are_those_over_the_classes_that_were_hit_at_all() -> None:
    lost = torch.tensor([[6, 2, 0, 0], [1, 3, 0, 0], [0, 0, 1, 1], [2, 0, 0, 0]])  # 6/11, 3/6, 1/2, 0/3
    about = {"groups": GROUPS, "has_background": True}
    found = without_zeros(run_scores([MATRIX[:3, :3], lost], CLASSES, GROUPS) | about)
    scores = Scores.from_json(found["steps"][-1])
    assert scores.all.with_background == pytest.approx((600 / 11 + 50 + 50) / 3)
    assert scores.new == Mean(None, None)
    assert scores.iou["cow"] is None
    assert scores.absent == ()
    plain = run_scores([MATRIX[:3, :3], MATRIX], CLASSES, GROUPS) | about
    assert without_zeros(plain) == plain | {"zeros": "left out"}, "nothing was lost, so nothing changes"


def test_a_background_that_is_no_class_enters_no_mean() -> None:
    scores = scores_from_confusion(MATRIX, CLASSES, GROUPS, has_background=False)
    assert scores.iou["background"] is None
    assert scores.absent == ("dog",)
    for one in (scores.all, scores.old, scores.new, scores.harmonic, *scores.groups):
        assert one.with_background is None
    assert scores.all.without_background == pytest.approx(50)
    assert "– / 50.0" in str(scores)


def test_before_the_second_step_there_is_no_new() -> None:
    scores = scores_from_confusion(MATRIX[:3, :3], CLASSES, GROUPS)
    assert scores.new == scores.harmonic == Mean(None, None)
    assert len(scores.groups) == 1
    assert list(scores.iou) == ["background", "cat", "dog"]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.booleans())
def test_against_an_independent_reference(seed: int, empty_row: bool) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, rng.integers(1, 4))
    channels = 1 + int(sizes.sum())
    groups = np.split(np.arange(1, channels), np.cumsum(sizes)[:-1])
    counts = rng.integers(0, 50, (channels, channels))
    if empty_row:
        counts[rng.integers(channels)] = 0
    names = [f"c{i}" for i in range(channels)]
    scores = scores_from_confusion(torch.from_numpy(counts), names, [group.tolist() for group in groups])
    with np.errstate(invalid="ignore", divide="ignore"):
        union = counts.sum(0) + counts.sum(1) - np.diag(counts)
        iou = np.where(counts.sum(1) > 0, 100 * np.diag(counts) / union, np.nan)

    def expect(found: float | None, channels: np.ndarray) -> None:
        values = iou[channels]
        if np.isnan(values).all():
            assert found is None
        else:
            assert found == pytest.approx(np.nanmean(values))

    expect(scores.all.with_background, np.arange(channels))
    expect(scores.all.without_background, np.arange(1, channels))
    expect(scores.old.with_background, np.r_[0, groups[0]])
    expect(scores.old.without_background, groups[0])
    for index, group in enumerate(groups[1:], 1):
        expect(scores.groups[index].with_background, group)
    if len(groups) > 1:
        expect(scores.new.without_background, np.concatenate(groups[1:]))
    assert set(scores.absent) == {names[i] for i in np.flatnonzero(np.isnan(iou))}


def test_a_run_from_step_to_step() -> None:
    first = torch.tensor([[8, 0], [0, 4]])
    second = torch.tensor([[8, 0, 0], [2, 2, 0], [0, 0, 4]])
    results = run_scores([first, second], ("background", "cat", "dog"), ((1,), (2,)))
    assert [step["step"] for step in results["steps"]] == [0, 1]
    assert [step["seen"] for step in results["steps"]] == [2, 3]
    assert results["steps"][0]["forgetting"] == {}
    assert results["steps"][1]["forgetting"] == {"background": pytest.approx(20), "cat": pytest.approx(50)}
    assert results["average"]["without_background"] == pytest.approx((100 + 75) / 2)
    json.dumps(results, allow_nan=False)


def test_everything_at_once_has_one_step_and_all_groups() -> None:
    results = run_scores([torch.eye(3, dtype=torch.int64)], ("background", "cat", "dog"), ((1,), (2,)))
    scores = results["steps"][0]["scores"]
    assert len(scores["groups"]) == 2
    assert scores["new"]["with_background"] == 100


def test_texts_and_json() -> None:
    scores = scores_from_confusion(MATRIX, CLASSES, GROUPS)
    assert str(scores).startswith("mIoU with / without background: all 55.6 / 50.0 · old 58.3 / 50.0")
    assert str(scores).endswith("no true pixel, left out: dog")
    assert Scores.from_json(json.loads(json.dumps(scores.to_json()))) == scores
    assert percent(None) == "–"
    assert [percent(value) for value in (-0.04, -0.06, -10.0)] == ["0.0", "-0.1", "-10.0"]


def test_small_pieces() -> None:
    assert (mean([None, 2.0, 4.0]), mean([None])) == (3.0, None)
    assert (harmonic_mean(0.0, 0.0), harmonic_mean(None, 3.0)) == (0.0, None)
    assert forgetting([{"cat": None}, {"cat": 5.0}]) == {}
    assert forgetting([{"cat": 5.0}, {"cat": None}]) == {}
