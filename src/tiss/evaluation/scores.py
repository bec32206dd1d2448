"""Scores from confusion matrices, as the field reports them; every figure in percent.

*Old* are the classes of step 0, *new* all that were added later. The background counts as old: each mean is given
with it and without it. A class without a single true pixel has no IoU: it is left out of every mean and named in
`absent`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Groups = Sequence[Sequence[int]]
BACKGROUND_FALL = (
    10.0  # points of IoU; a background may change more than a class before it is worth a warning
)


@dataclass(frozen=True)
class Mean:
    """A mean IoU twice; None where there is nothing to average."""

    with_background: float | None
    without_background: float | None

    @property
    def headline(self) -> float | None:
        """With the background where it is a class, else without."""
        return self.without_background if self.with_background is None else self.with_background

    def __str__(self) -> str:
        return f"{percent(self.with_background)} / {percent(self.without_background)}"


@dataclass(frozen=True)
class Scores:
    """What a model scores on the classes seen so far."""

    iou: dict[str, float | None]  # by class, in the order of the channels, the background first
    all: Mean
    old: Mean
    new: Mean
    groups: tuple[Mean, ...]  # of each step's classes
    harmonic: Mean  # of old and new
    absent: tuple[str, ...]  # classes without a true pixel
    pixel_accuracy: float | None

    @property
    def means(self) -> dict[str, Mean]:
        return {"all": self.all, "old": self.old, "new": self.new, "harmonic": self.harmonic}

    def __str__(self) -> str:
        text = " · ".join(f"{name} {mean}" for name, mean in self.means.items())
        absent = f"\nno true pixel, left out: {', '.join(self.absent)}" if self.absent else ""
        return f"mIoU with / without background: {text}{absent}"

    def to_json(self) -> dict[str, Any]:
        """The scores of one step in results.json."""
        return {
            "seen": len(self.iou),
            "iou": dict(self.iou),
            "scores": {name: asdict(mean) for name, mean in self.means.items()}
            | {"groups": [asdict(mean) for mean in self.groups]},
            "absent": list(self.absent),
            "pixel_accuracy": self.pixel_accuracy,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Scores:
        """One entry of `steps` in results.json."""
        scores = entry["scores"]
        return cls(
            iou=dict(entry["iou"]),
            **{name: Mean(**scores[name]) for name in ("all", "old", "new", "harmonic")},
            groups=tuple(Mean(**mean) for mean in scores["groups"]),
            absent=tuple(entry["absent"]),
            pixel_accuracy=entry["pixel_accuracy"],
        )


def percent(value: float | None) -> str:
    """One decimal, or – where there is no value."""
    return "–" if value is None else f"{value:.1f}".replace("-0.0", "0.0")


def class_iou(matrix: Tensor) -> list[float | None]:
    """IoU in percent of each channel of a confusion matrix C × C; None for one without a true pixel.

    >>> class_iou(torch.tensor([[3, 1, 0], [0, 4, 0], [0, 0, 0]]))
    [75.0, 80.0, None]
    """
    counts = matrix.to("cpu", torch.int64)
    hits, true, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    columns = zip(hits.tolist(), (true + predicted - hits).tolist(), true.tolist(), strict=True)
    return [100 * hit / union if pixels else None for hit, union, pixels in columns]


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def harmonic_mean(one: float | None, other: float | None) -> float | None:
    """2ab / (a + b); 0 where both are 0.

    >>> harmonic_mean(60.0, 30.0)
    40.0
    """
    if one is None or other is None:
        return None
    return 2 * one * other / (one + other) if one + other > 0 else 0.0


def forgetting(history: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """For each class: its best IoU at any earlier step − its IoU now (the last of `history`), where it has both.

    >>> forgetting([{"cat": 60.0}, {"cat": 70.0, "dog": 50.0}, {"cat": 40.0, "dog": 55.0}])
    {'cat': 30.0, 'dog': -5.0}
    """
    *earlier, now = history
    before = {name: [iou for step in earlier if (iou := step.get(name)) is not None] for name in now}
    return {name: max(before[name]) - iou for name, iou in now.items() if iou is not None and before[name]}


def background_falls(values: Sequence[float | None]) -> list[int]:
    """The steps that took more than 10 points off the background's IoU: a method fails there, and means hardly move.

    >>> background_falls([94.8, 85.6, 68.9, None, 40.0])
    [2]
    """
    pairs = enumerate(pairwise(values), 1)
    known = ((step, one - two) for step, (one, two) in pairs if one is not None and two is not None)
    return [step for step, lost in known if lost > BACKGROUND_FALL]


def scores_from_confusion(
    matrix: Tensor, classes: Sequence[str], groups: Groups, *, has_background: bool = True
) -> Scores:
    """All scores of one confusion matrix C × C.

    Args:
        matrix: rows are true channels, columns predicted ones.
        classes: names of the C channels, the background first; more than C are cut off.
        groups: the channels that each step adds; those not seen yet (≥ C) are skipped.
        has_background: whether channel 0 is a class; if not, it has no IoU and means with it are None.
    """
    seen, total, values = len(matrix), int(matrix.sum()), class_iou(matrix)
    absent = [classes[c] for c in range(0 if has_background else 1, seen) if values[c] is None]
    if not has_background:
        values[0] = None
    return Scores(
        iou=dict(zip(classes[:seen], values, strict=True)),
        **_means(values, groups, has_background),
        absent=tuple(absent),
        pixel_accuracy=100 * int(matrix.diagonal().sum()) / total if total else None,
    )


def _means(values: Sequence[float | None], groups: Groups, has_background: bool) -> dict[str, Any]:
    """The means over all, old and new classes and over each group, from the IoU of each channel."""
    seen = len(values)
    known = [[channel for channel in group if channel < seen] for group in groups]

    def over(channels: Iterable[int], background: bool) -> Mean:
        foreground = [values[channel] for channel in channels]
        whole = mean([values[0], *foreground] if background else foreground)
        return Mean(whole if has_background else None, mean(foreground))

    added = [channel for group in known[1:] for channel in group]
    old, new = over(known[0], True), over(added, False)
    return {
        "all": over(range(1, seen), True),
        "old": old,
        "new": new,
        "groups": tuple(over(group, index == 0) for index, group in enumerate(known) if group),
        "harmonic": Mean(*map(harmonic_mean, astuple(old), astuple(new))),
    }


def without_zeros(results: Mapping[str, Any]) -> dict[str, Any]:
    """The values of results.json with classes of IoU 0 left out of every mean, which published codes such as MBS's do.

    Such a mean rises where a class is lost altogether: it serves to read tables that were made so, and nothing else.
    """
    steps = []
    for entry in results["steps"]:
        iou = {name: value or None for name, value in entry["iou"].items()}
        means = _means([*iou.values()], results["groups"], results["has_background"])
        scores = replace(Scores.from_json(entry), iou=iou, **means)
        steps.append(dict(entry) | scores.to_json())
    return dict(results) | {"steps": steps, "average": _average(steps), "zeros": "left out"}


def _average(steps: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    everything = [step["scores"]["all"] for step in steps]
    return {key: mean(one[key] for one in everything) for key in ("with_background", "without_background")}


def run_scores(
    matrices: Sequence[Tensor], classes: Sequence[str], groups: Groups, *, has_background: bool = True
) -> dict[str, Any]:
    """The scores after each step and their average, as results.json holds them.

    `matrices` has one confusion matrix per step; a run that trains on everything at once has a single, full one.
    """
    steps: list[dict[str, Any]] = []
    history: list[dict[str, float | None]] = []
    for index, matrix in enumerate(matrices):
        scores = scores_from_confusion(matrix, classes, groups, has_background=has_background)
        history.append(scores.iou)
        steps.append({"step": index} | scores.to_json() | {"forgetting": forgetting(history)})
    return {"steps": steps, "average": _average(steps)}
