"""Two models over the same pictures: what was gained, what was lost, what changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiss.data.base import BACKGROUND, IGNORE
from tiss.engine.progress import Reporter
from tiss.errors import TissError
from tiss.evaluation.scores import class_iou, mean, percent
from tiss.user.segment import Segmenter

WORST = 4  # pictures that a report shows
LEAST = 0.05  # percent of a picture that must have changed for it to be shown


@dataclass(frozen=True)
class Material:
    """Pictures to compare on. `read(i)` gives a picture uint8 3 × H × W and its labels in `space`, if any."""

    names: tuple[str, ...]
    read: Callable[[int], tuple[Tensor, Tensor | None]]
    space: tuple[str, ...]  # class names by channel, the background first
    labelled: frozenset[str] = frozenset()  # classes whose every pixel the labels mark


@dataclass(frozen=True)
class ClassChange:
    """What happened to one class: IoU against labels, agreement with the old model; both in percent."""

    name: str
    kind: str  # "old", "new" (only the new model has it) or "gone" (only the old one)
    before: float | None = None
    after: float | None = None
    agreement: float | None = None

    @property
    def change(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass
class Comparison:
    """The result over all pictures."""

    classes: list[ClassChange]
    pictures: int
    same: float | None  # percent of pixels (those of new classes left out) where both models agree
    worst: list[tuple[str, float]]  # the pictures that changed most: name, percent of pixels lost or changed
    judged: bool  # whether `worst` counts pixels that were right before and are wrong now
    broken: list[str] = field(default_factory=list)

    @property
    def new_classes(self) -> list[ClassChange]:
        return [one for one in self.classes if one.kind == "new"]

    @property
    def old_classes(self) -> list[ClassChange]:
        return [one for one in self.classes if one.kind != "new"]

    def to_json(self) -> dict[str, Any]:
        rows = [asdict(one) | {"change": one.change} for one in self.classes]
        return {
            "pictures": self.pictures,
            "pixels_as_before": self.same,
            # of a first model the background is new too; later steps do not have it among theirs
            "new_iou": mean(one.after for one in self.new_classes if one is not self.classes[0]),
            "old_change": mean(one.change for one in self.old_classes),
            "classes": rows,
            "worst": [{"picture": name, "percent": value} for name, value in self.worst],
            "broken": self.broken,
        }


class Counter:
    """Adds up what a comparison needs, picture by picture, in whole numbers."""

    def __init__(self, material: Material, old: Segmenter, new: Segmenter) -> None:
        self.material = material
        self.space = material.space
        self.old_table, self.new_table = (_table(one.model.classes, self.space) for one in (old, new))
        self.only_new = [c for c, name in enumerate(self.space) if c and name not in old.model.classes]
        size = len(self.space)
        self.before, self.after, self.both = (np.zeros((size, size), np.int64) for _ in range(3))
        labelled = [c for c, name in enumerate(self.space) if name in material.labelled]
        self.judged = [c for c in labelled if c not in self.only_new]
        self.has_labels = False

    def add(self, old: np.ndarray, new: np.ndarray, truth: np.ndarray | None) -> float:
        """Counts one picture; returns the percentage of it that got worse (or, without labels, changed)."""
        old, new = self.old_table[old], self.new_table[new]
        kept = np.ones(old.shape, bool)
        if truth is not None:
            self.has_labels = True
            counted = truth != IGNORE
            self.before += _confusion(truth[counted], old[counted], len(self.space))
            self.after += _confusion(truth[counted], new[counted], len(self.space))
            kept = ~np.isin(truth, self.only_new)
        self.both += _confusion(old[kept], new[kept], len(self.space))
        if truth is not None and self.judged:
            lost = (old == truth) & (new != truth) & np.isin(truth, self.judged)
            if BACKGROUND not in self.judged:  # label 0 may hide an old class there: any change counts
                lost |= (old != new) & (truth == BACKGROUND)
            return 100 * float(lost.mean())
        return 100 * float(((old != new) & kept).mean())

    def finish(self, old: Sequence[str], new: Sequence[str]) -> tuple[list[ClassChange], float | None]:
        """The classes' changes, and the percentage of pixels that both models call the same."""
        before, after = (class_iou(torch.from_numpy(matrix)) for matrix in (self.before, self.after))
        rows = []
        for channel, name in enumerate(self.space):
            kind = (
                "old" if channel == 0 or (name in old and name in new) else "new" if name in new else "gone"
            )
            known = self.has_labels and name in self.material.labelled
            rows.append(
                ClassChange(
                    name,
                    kind,
                    before[channel] if known and kind != "new" else None,
                    after[channel] if known and kind != "gone" else None,
                    self._agreement(channel) if kind == "old" else None,
                )
            )
        total = int(self.both.sum())
        return rows, 100 * int(np.trace(self.both)) / total if total else None

    def _agreement(self, channel: int) -> float | None:
        together = int(self.both[channel, channel])
        either = int(self.both[channel].sum() + self.both[:, channel].sum()) - together
        return 100 * together / either if either else None


def compare_models(
    old: Segmenter, new: Segmenter, material: Material, reporter: Reporter | None = None
) -> Comparison:
    """Both models over every picture. A picture that cannot be read is listed and left out."""
    counter = Counter(material, old, new)
    scores: list[tuple[float, str]] = []
    broken: list[str] = []
    with (reporter or Reporter()).bar("compare", len(material.names)) as bar:
        for index, name in enumerate(material.names):
            try:
                image, label = material.read(index)
            except TissError as error:
                broken.append(str(error))
                bar.advance()
                continue
            truth = label.numpy() if label is not None else None
            after = new.one(image).numpy()
            before = after if old is new else old.one(image).numpy()  # a first model is compared with itself
            scores.append((counter.add(before, after, truth), name))
            bar.advance()
    if not scores:
        raise TissError(
            f"no picture could be read: {broken[0]}" if broken else "there is no picture to compare on"
        )
    rows, same = counter.finish(old.model.classes, new.model.classes)
    worst = [
        (name, score)
        for score, name in sorted(scores, key=lambda one: (-one[0], one[1]))[:WORST]
        if score >= LEAST
    ]
    judged = counter.has_labels and bool(counter.judged)
    return Comparison(rows, len(scores), same, worst, judged, broken)


def describe(result: Comparison) -> list[str]:
    """The comparison in lines for a terminal."""
    lines = []
    if result.new_classes:
        head = "new classes" if result.old_classes else "classes"  # of a first model, with the background
        lines += [f"{head:<24}IoU"]
        lines += [f"  {one.name:<20} {percent(one.after):>5}{_remark(one)}" for one in result.new_classes]
    measured = [one for one in result.old_classes if one.before is not None or one.after is not None]
    if measured:
        lines += ["", f"{'old classes, by labels':<22} {'before':>6} {'after':>6} {'change':>7}"]
        lines += [
            f"  {one.name:<20} {percent(one.before):>6} {percent(one.after):>6} {_signed(one.change):>7}"
            for one in measured
        ]
    compared = [one for one in result.old_classes if one not in measured]
    if compared:
        lines += ["", "old classes without labels: agreement with the old model's own predictions"]
        lines += [f"  {one.name:<20} {percent(one.agreement):>5} %" for one in compared]
    same = "" if result.same is None else f"; {percent(result.same)} % of the pixels as before"
    lines += ["", f"on {result.pictures} pictures{same}"]
    if result.broken:
        lines += [f"left out, {len(result.broken)}: {result.broken[0]}"]
    return lines[1:] if lines[0] == "" else lines


WEAK = 5.0  # IoU in % of a class that was not learnt to speak of


def _remark(one: ClassChange) -> str:
    """What a figure means that does not speak for itself."""
    if one.after is None:
        return "  (in none of these pictures)"
    return "  (hardly learnt: more pictures of it, more --epochs)" if one.after < WEAK else ""


def joint_space(old: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """The new model's classes, then those that only the old one has."""
    return (*new, *(name for name in old[1:] if name not in new))


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f}"


def _table(classes: Sequence[str], space: Sequence[str]) -> np.ndarray:
    """uint8[256]: a model's channel → channel of `space`, by name."""
    table = np.full(256, BACKGROUND, np.uint8)
    for channel, name in enumerate(classes):
        table[channel] = space.index(name) if channel else BACKGROUND
    return table


def _confusion(rows: np.ndarray, columns: np.ndarray, size: int) -> np.ndarray:
    pairs = rows.astype(np.int64) * size + columns
    return np.bincount(pairs.ravel(), minlength=size * size).reshape(size, size)
