"""Two models on the same images: what was gained, what was lost, what changed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tiss.data.base import BACKGROUND, IGNORE
from tiss.data.images import read_image
from tiss.engine.features import FeatureCache
from tiss.engine.predictor import Predictor
from tiss.engine.progress import Reporter
from tiss.errors import TissError
from tiss.evaluation.scores import class_iou
from tiss.files import atomic_folder, write_bytes, write_json, write_text
from tiss.report.render import embed, write_page
from tiss.scenarios import Split
from tiss.user.changes import ClassChange, Comparison, describe, tables
from tiss.user.folder_step import LabelledFolder
from tiss.user.items import find_images
from tiss.user.predict import side_by_side, to_png

WORST = 4  # images that a report shows
LEAST = 0.05  # percent of an image that must have changed for it to be shown


@dataclass(frozen=True)
class ImageSet:
    """Images to compare on. `read(i)` gives an image uint8 3 × H × W and its labels in `space`, if any."""

    names: tuple[str, ...]
    read: Callable[[int], tuple[Tensor, Tensor | None]]
    space: tuple[str, ...]  # class names by channel, the background first
    labelled: frozenset[str] = frozenset()  # classes of which every pixel is labelled

    @classmethod
    def of(cls, split: Split, space: Sequence[str], labelled: frozenset[str] = frozenset()) -> "ImageSet":
        """A split whose channels are those of `space`."""

        def read(index: int) -> tuple[Tensor, Tensor | None]:
            sample = split.read(index)
            return sample.image, sample.label

        return cls(split.ids, read, tuple(space), labelled)


class Counter:
    """Sums up what a comparison needs, image by image, in whole numbers."""

    def __init__(self, images: ImageSet, old: Sequence[str], new: Sequence[str]) -> None:
        self.images, self.old, self.new, self.space = images, old, new, images.space
        self.tables = tuple(channel_table(classes, self.space) for classes in (old or new, new))
        self.only_new = [c for c, name in enumerate(self.space) if c and name not in old]
        labelled = [c for c, name in enumerate(self.space) if name in images.labelled]
        self.judged = [c for c in labelled if c not in self.only_new]
        size = len(self.space)
        # labels × old model, labels × new model, old × new model where no new class is labelled, and everywhere
        self.before, self.after, self.both, self.all = (np.zeros((size, size), np.int64) for _ in range(4))

    @property
    def has_labels(self) -> bool:
        return bool(self.before.any())

    def _count(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """How often each pair of channels occurs."""
        pairs = np.ravel_multi_index((rows, columns), self.all.shape)
        return np.bincount(pairs.ravel(), minlength=self.all.size).reshape(self.all.shape)

    def add(
        self, old: np.ndarray, new: np.ndarray, truth: np.ndarray | None, only_area: bool = False
    ) -> float:
        """Counts one image; returns the percentage of it that was lost (or, without labels, changed)."""
        old, new = self.tables[0][old], self.tables[1][new]
        self.all += self._count(old, new)
        if only_area:
            return 0.0
        kept = np.ones(old.shape, bool)
        if truth is not None:
            counted = truth != IGNORE
            self.before += self._count(truth[counted], old[counted])
            self.after += self._count(truth[counted], new[counted])
            kept = ~np.isin(truth, self.only_new)
        self.both += self._count(old[kept], new[kept])
        if truth is None or not self.judged:
            return 100 * float(((old != new) & kept).mean())
        lost = (old == truth) & (new != truth) & np.isin(truth, self.judged)
        if BACKGROUND not in self.judged:  # label 0 may hide an old class there: any change counts
            lost |= (old != new) & (truth == BACKGROUND)
        return 100 * float(lost.mean())

    def finish(self) -> tuple[list[ClassChange], float | None]:
        """The classes' changes, and the percentage of pixels that both models label the same."""
        before, after = (class_iou(torch.from_numpy(matrix)) for matrix in (self.before, self.after))
        shared = np.diag(self.both)
        either = self.both.sum(0) + self.both.sum(1) - shared
        old_area, new_area = self.all.sum(1), self.all.sum(0)
        old_area[BACKGROUND] -= self.all[BACKGROUND, self.only_new].sum()  # not lost, but found
        either[BACKGROUND] -= self.both[BACKGROUND, self.only_new].sum()
        pixels = self.all.sum()

        def share(part: Any, whole: Any) -> float | None:
            return 100 * float(part) / float(whole) if whole else None

        rows = []
        for channel, name in enumerate(self.space):
            new = not self.old or (channel > 0 and name not in self.old)
            kind = "new" if new else "old" if channel == 0 or name in self.new else "gone"
            known = self.has_labels and name in self.images.labelled
            one = before[channel] if known and kind != "new" else None
            two = after[channel] if known and kind != "gone" else None
            agreement = share(shared[channel], either[channel]) if kind == "old" else None
            area = share(old_area[channel], pixels) if kind != "new" else None
            rows.append(ClassChange(name, kind, one, two, agreement, area, share(new_area[channel], pixels)))
        return rows, share(np.trace(self.both), self.both.sum()) if self.old else None


def compare_models(
    old: Predictor | None,
    new: Predictor,
    images: ImageSet,
    reporter: Reporter | None = None,
    also: Sequence[ImageSet] = (),
    features: FeatureCache | None = None,
) -> Comparison:
    """Both models on every image; `also` are more images, for the areas only. A first model has no old one.

    Unreadable images are listed.
    """
    counter = Counter(images, old.classes if old else (), new.classes)
    broken: list[str] = []
    scores: list[tuple[float, str]] = []
    total = sum(len(part.names) for part in (images, *also))
    shared = (features or FeatureCache()).of(old.model if old else None, new.model)
    with (reporter or Reporter()).bar("compare", total) as bar, shared:
        for part in (images, *also):
            for index, name in enumerate(part.names):
                bar.advance()
                try:
                    image, label = part.read(index)
                except TissError as error:
                    broken.append(str(error))
                    continue
                after = new.one(image).numpy()
                before = old.one(image).numpy() if old else after
                truth = None if label is None else label.numpy()
                score = counter.add(before, after, truth, only_area=part is not images)
                scores += [(-score, name)] if part is images else []
    if not scores:
        raise TissError(f"no image could be read: {broken[0]}" if broken else "no image to compare on")
    rows, same = counter.finish()
    worst = [(name, -score) for score, name in sorted(scores)[:WORST] if -score >= LEAST]
    judged = counter.has_labels and bool(counter.judged)
    return Comparison(rows, len(scores), same, worst, judged, broken, total - len(broken))


Drawn = list[tuple[str, Image.Image]]  # captions and images


def channel_table(classes: Sequence[str], space: Sequence[str]) -> np.ndarray:
    """A model's channel → channel of `space`, by name."""
    return np.array([BACKGROUND, *(space.index(name) for name in classes[1:])], np.uint8)


def open_images(data: str, old: Sequence[str], new: Sequence[str]) -> ImageSet:
    """The images of `data`: a labelled folder (its test images if it has any), or images alone."""
    space = (*new, *(name for name in old[1:] if name not in new))
    if not (Path(data).expanduser() / "masks").is_dir():
        items = find_images([data])
        names = tuple(item.name for item in items)
        return ImageSet(names, lambda index: (read_image(items[index].path), None), space)
    dataset = LabelledFolder(data)
    split = "test" if dataset.has_test() else "train"
    dataset.classes_present(split)  # a mask with an unknown number is an error here, not in the middle
    table, labelled = dataset.table(space)
    if not labelled:
        listed = ", ".join(dataset.classes)
        raise TissError(f"{dataset.root_path()}: neither model knows a class of its list ({listed})")
    return ImageSet.of(Split(dataset, split, tuple(dataset.ids(split)), table), space, labelled)


def write_report(folder: Path, title: str, fact: str, result: Comparison, drawn: Drawn) -> None:
    """report.txt, report.json and report.html."""
    write_text(folder / "report.txt", "\n".join([fact, "", *describe(result), ""]).lstrip())
    write_json(folder / "report.json", result.to_json())
    images = [(embed(image, caption), caption) for caption, image in drawn]
    values = {"fact": fact, "result": result, "tables": tables(result), "images": images}
    write_page(folder / "report.html", "compare.html", title=title, **values)


def write_comparison(out: Path, title: str, result: Comparison, drawn: Drawn) -> None:
    """The report in a folder of its own, with a PNG for each of the worst images."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        for number, (_, image) in enumerate(drawn, 1):
            write_bytes(folder / f"worst-{number}.png", to_png(image))
        write_report(folder, title, "", result, drawn)


def draw_worst(
    result: Comparison, images: ImageSet, old: Predictor, new: Predictor, features: FeatureCache | None = None
) -> Drawn:
    """A caption and a row of panels (image, labels, both models) for each of the images that changed most."""
    drawn = []
    with (features or FeatureCache()).of(old.model, new.model):
        for name, caption in result.captions().items():
            image, label = images.read(images.names.index(name))
            masks = {} if label is None else {"labels": label.numpy() % IGNORE}  # ignored ones as background
            for title, one in (("before", old), ("now", new)):
                masks[title] = channel_table(one.classes, images.space)[one.one(image).numpy()]
            drawn.append((caption, side_by_side(image.permute(1, 2, 0).numpy(), masks, images.space)))
    return drawn
