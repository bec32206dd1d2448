"""Two models on the same images: what was gained, what was lost, what changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiss.data.base import BACKGROUND, IGNORE
from tiss.data.images import read_image
from tiss.engine.predictor import Predictor
from tiss.engine.progress import Reporter
from tiss.errors import TissError
from tiss.evaluation.scores import class_iou, mean, percent
from tiss.user.folder_step import LabelledFolder
from tiss.user.predict import find_items

WORST = 4  # images that a report shows
LEAST = 0.05  # percent of an image that must have changed for it to be shown
SHRINKS = 0.95  # an old class that covers less than this share of its area before is reported as shrinking
WEAK = 5.0  # IoU in % below which a class is called hardly segmented


@dataclass(frozen=True)
class ImageSet:
    """Images to compare on. `read(i)` gives an image uint8 3 × H × W and its labels in `space`, if any."""

    names: tuple[str, ...]
    read: Callable[[int], tuple[Tensor, Tensor | None]]
    space: tuple[str, ...]  # class names by channel, the background first
    labelled: frozenset[str] = frozenset()  # classes of which every pixel is labelled


@dataclass(frozen=True)
class ClassChange:
    """What happened to one class, in percent: IoU against labels, agreement with the old model, area predicted."""

    name: str
    kind: str  # "old", "new" (only the new model has it) or "gone" (only the old one)
    before: float | None = None
    after: float | None = None
    agreement: float | None = None
    # of all pixels, labelled or not; of the background before, only what is not a new class now
    area_before: float | None = None
    area_after: float | None = None

    @property
    def change(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def area_change(self) -> float | None:
        """In percent of the area before."""
        return (
            None
            if not self.area_before or self.area_after is None
            else (100 * (self.area_after / self.area_before - 1))
        )

    @property
    def shrinks(self) -> bool:
        return self.area_change is not None and self.area_change < 100 * (SHRINKS - 1)


@dataclass
class Comparison:
    """The result over all images."""

    classes: list[ClassChange]
    images: int
    same: float | None  # percent of pixels (those of new classes left out) where both models agree
    worst: list[tuple[str, float]]  # the images that changed most: name, percent of pixels lost or changed
    judged: bool  # whether `worst` counts pixels that were right before and are wrong now
    broken: list[str] = field(default_factory=list)
    area_images: int = 0  # images on which areas were compared

    @property
    def new_classes(self) -> list[ClassChange]:
        return [one for one in self.classes if one.kind == "new"]

    @property
    def old_classes(self) -> list[ClassChange]:
        return [one for one in self.classes if one.kind != "new"]

    @property
    def scope(self) -> str:
        """The images that were used, and how much stayed the same."""
        more = f"; areas on {self.area_images}" if self.area_images > self.images else ""
        same = "" if self.same is None else f"; {percent(self.same)} % of the pixels as before"
        return f"on {self.images} images{more}{same}"

    @property
    def verb(self) -> str:
        return "lost" if self.judged else "changed"

    def to_json(self) -> dict[str, Any]:
        rows = [asdict(one) | {"change": one.change, "area_change": one.area_change} for one in self.classes]
        return {
            "pictures": self.images,
            "pixels_as_before": self.same,
            # of a first model the background is new too; later steps do not have it among theirs
            "new_iou": mean(one.after for one in self.new_classes if one is not self.classes[0]),
            "old_change": mean(one.change for one in self.old_classes),
            "classes": rows,
            "worst": [{"picture": name, "percent": value} for name, value in self.worst],
            "broken": self.broken,
        }


class Counter:
    """Sums up what a comparison needs, image by image, in whole numbers."""

    def __init__(self, images: ImageSet, old: Sequence[str], new: Sequence[str]) -> None:
        self.images, self.old, self.new, self.space = images, old, new, images.space
        self.tables = tuple(channel_table(classes, self.space) for classes in (old, new))
        self.only_new = [c for c, name in enumerate(self.space) if c and name not in old]
        labelled = [c for c, name in enumerate(self.space) if name in images.labelled]
        self.judged = [c for c in labelled if c not in self.only_new]
        size = len(self.space)
        # labels × old model, labels × new model, old × new model where no new class is labelled, and everywhere
        self.before, self.after, self.both, self.all = (np.zeros((size, size), np.int64) for _ in range(4))

    @property
    def has_labels(self) -> bool:
        return bool(self.before.any())

    def add(self, old: np.ndarray, new: np.ndarray, truth: np.ndarray | None) -> float:
        """Counts one image; returns the percentage of it that was lost (or, without labels, changed)."""
        old, new = self.tables[0][old], self.tables[1][new]
        count = partial(joint_counts, size=len(self.space))
        self.all += count(old, new)
        kept = np.ones(old.shape, bool)
        if truth is not None:
            counted = truth != IGNORE
            self.before += count(truth[counted], old[counted])
            self.after += count(truth[counted], new[counted])
            kept = ~np.isin(truth, self.only_new)
        self.both += count(old[kept], new[kept])
        if truth is None or not self.judged:
            return 100 * float(((old != new) & kept).mean())
        lost = (old == truth) & (new != truth) & np.isin(truth, self.judged)
        if BACKGROUND not in self.judged:  # label 0 may hide an old class there: any change counts
            lost |= (old != new) & (truth == BACKGROUND)
        return 100 * float(lost.mean())

    def add_areas(self, old: np.ndarray, new: np.ndarray) -> None:
        """Counts an image for the areas only."""
        self.all += joint_counts(self.tables[0][old], self.tables[1][new], len(self.space))

    def finish(self) -> tuple[list[ClassChange], float | None]:
        """The classes' changes, and the percentage of pixels that both models label the same."""
        before, after = (class_iou(torch.from_numpy(matrix)) for matrix in (self.before, self.after))
        old_area, new_area = self.all.sum(1), self.all.sum(0)
        old_area[BACKGROUND] -= self.all[BACKGROUND, self.only_new].sum()  # not lost, but found
        pixels = max(1, self.all.sum())
        rows = []
        for channel, name in enumerate(self.space):
            in_both = channel == 0 or (name in self.old and name in self.new)
            kind = "old" if in_both else "new" if name in self.new else "gone"
            known = self.has_labels and name in self.images.labelled
            rows.append(
                ClassChange(
                    name,
                    kind,
                    before[channel] if known and kind != "new" else None,
                    after[channel] if known and kind != "gone" else None,
                    self._agreement(channel) if kind == "old" else None,
                    100 * float(old_area[channel]) / pixels if kind != "new" else None,
                    100 * float(new_area[channel]) / pixels,
                )
            )
        total = int(self.both.sum())
        return rows, 100 * int(np.trace(self.both)) / total if total else None

    def _agreement(self, channel: int) -> float | None:
        shared = int(self.both[channel, channel])
        either = int(self.both[channel].sum() + self.both[:, channel].sum()) - shared
        return 100 * shared / either if either else None


def compare_models(
    old: Predictor,
    new: Predictor,
    images: ImageSet,
    reporter: Reporter | None = None,
    also: ImageSet | None = None,
) -> Comparison:
    """Both models on every image; `also` has more images, for the areas only. Unreadable images are listed."""
    counter = Counter(images, old.classes, new.classes)
    broken: list[str] = []
    scores: list[tuple[float, str]] = []
    total = len(images.names) + (len(also.names) if also else 0)
    with (reporter or Reporter()).bar("compare", total) as bar:
        for part in filter(None, (images, also)):
            for name, image, label in _read_all(part, broken, bar):
                after = new.one(image).numpy()
                before = after if old is new else old.one(image).numpy()  # a first model is its own old model
                if part is also:
                    counter.add_areas(before, after)
                else:
                    truth = label.numpy() if label is not None else None
                    scores.append((counter.add(before, after, truth), name))
    if not scores:
        raise TissError(
            f"no image could be read: {broken[0]}" if broken else "there is no image to compare on"
        )
    rows, same = counter.finish()
    largest = sorted(scores, key=lambda one: (-one[0], one[1]))[:WORST]
    worst = [(name, score) for score, name in largest if score >= LEAST]
    judged = counter.has_labels and bool(counter.judged)
    return Comparison(rows, len(scores), same, worst, judged, broken, total - len(broken))


def _read_all(images: ImageSet, broken: list[str], bar: Any) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    for index, name in enumerate(images.names):
        try:
            image, label = images.read(index)
        except TissError as error:
            broken.append(str(error))
        else:
            yield name, image, label
        bar.advance()


def describe(result: Comparison) -> list[str]:
    """The comparison as lines for a terminal."""
    blocks = []
    if result.new_classes:
        head = "new classes" if result.old_classes else "classes"  # of a first model, with the background
        rows = [f"  {one.name:<20} {percent(one.after):>5}{_remark(one)}" for one in result.new_classes]
        blocks.append([f"{head:<24}IoU", *rows])
    measured = [one for one in result.old_classes if one.before is not None or one.after is not None]
    if measured:
        rows = [
            f"  {one.name:<20} {percent(one.before):>6} {percent(one.after):>6} {signed(one.change):>7}"
            for one in measured
        ]
        blocks.append([f"{'old classes, by labels':<22} {'before':>6} {'after':>6} {'change':>7}", *rows])
    if result.old_classes:
        rows = [
            f"  {one.name:<20} {percent(one.area_before):>6} {percent(one.area_after):>6} "
            f"{signed(one.area_change):>7} {percent(one.agreement):>6}{'  shrinks' if one.shrinks else ''}"
            for one in result.old_classes
        ]
        head = f"{'old classes, area in %':<22} {'before':>6} {'after':>6} {'change':>7} {'agree':>6}"
        blocks.append([head, *rows])
    last = [result.scope]
    if result.broken:
        last.append(f"left out, {len(result.broken)}: {result.broken[0]}")
    return "\n\n".join("\n".join(block) for block in (*blocks, last)).splitlines()


def _remark(one: ClassChange) -> str:
    """What an IoU means that needs a word."""
    if one.after is None:
        return "  (in none of these images)"
    return "  (hardly segmented: more images of it, more --epochs)" if one.after < WEAK else ""


def signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f}"


def joint_space(old: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """The new model's classes, then those that only the old one has."""
    return (*new, *(name for name in old[1:] if name not in new))


def channel_table(classes: Sequence[str], space: Sequence[str]) -> np.ndarray:
    """uint8[256]: a model's channel → channel of `space`, by name."""
    table = np.full(256, BACKGROUND, np.uint8)
    table[1 : len(classes)] = [space.index(name) for name in classes[1:]]
    return table


def joint_counts(rows: np.ndarray, columns: np.ndarray, size: int) -> np.ndarray:
    """How often each pair of channels occurs, size × size."""
    pairs = rows.astype(np.int64) * size + columns
    return np.bincount(pairs.ravel(), minlength=size * size).reshape(size, size)


def open_images(data: str, old: Sequence[str], new: Sequence[str]) -> ImageSet:
    """The images of `data`: a labelled folder (its test images if it has any), or images alone."""
    space = joint_space(old, new)
    if (Path(data).expanduser() / "masks").is_dir():
        return _labelled(LabelledFolder(data), space)
    items = [item for item in find_items([data]) if not item.is_video]
    if not items:
        raise TissError(f"{data}: no images there (videos are not compared)", setting="data")
    return ImageSet(
        tuple(item.name for item in items), lambda index: (read_image(items[index].path), None), space
    )


def _labelled(dataset: LabelledFolder, space: tuple[str, ...]) -> ImageSet:
    split = "test" if dataset.has_test() else "train"
    dataset.classes_present(split)  # a mask with an unknown number is an error here, not in the middle
    ids = tuple(dataset.ids(split))
    known = {value: space.index(name) for value, name in enumerate(dataset.classes, 1) if name in space}
    if not known:
        names = ", ".join(dataset.classes)
        raise TissError(f"{dataset.root_path()}: neither model knows a class of its list ({names})")
    table = torch.zeros(256, dtype=torch.uint8)
    table[IGNORE] = IGNORE
    for value, channel in known.items():
        table[value] = channel
    labelled = {space[channel] for channel in known.values()}
    if dataset.has_background and labelled >= set(space[1:]):
        labelled.add(space[0])

    def read(index: int) -> tuple[Tensor, Tensor | None]:
        sample = dataset.read(split, ids[index])
        return sample.image, table[sample.label.long()]

    return ImageSet(ids, read, space, frozenset(labelled))
