"""What a data set holds, file by file: everything that is wrong with it, and how often each class occurs."""

import hashlib
import io
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tiss.data.base import BACKGROUND, DATASETS, IGNORE, SPLITS, Dataset
from tiss.data.classes import MOST_CLASSES, ClassList
from tiss.data.folder import Folder, PairedDataset
from tiss.data.index import Pair
from tiss.errors import TissError
from tiss.files import write_bytes

PLOT_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass
class SplitReport:
    """What one split holds, and each of its faults in a line that names the file."""

    split: str
    images: int = 0
    smallest: tuple[int, int] = (0, 0)  # width and height of the image with the fewest pixels
    largest: tuple[int, int] = (0, 0)
    pixels: dict[int, int] = field(default_factory=dict)  # by label value
    faults: list[str] = field(default_factory=list)


def open_for_checking(name: str, root: str | None) -> tuple[Dataset, list[str]]:
    """The data set, and what is wrong with its class list; a root that cannot be read at all raises."""
    try:
        return DATASETS.get(name)(root), []
    except TissError as error:
        if name != "folder" or not root:
            raise
        # files can be checked all the same
        any_classes = ClassList(tuple(f"class {n}" for n in range(1, MOST_CLASSES + 1)), True, {})
        return Folder(root, any_classes), [str(error)]


def check_split(dataset: Dataset, split: str, decode: bool = True) -> SplitReport:
    """Reads every sample of `split`. With `decode`, images are decoded, else only headers and ends are checked."""
    try:
        if isinstance(dataset, PairedDataset):
            faults, found = dataset.check(split, decode)
        else:
            faults, found = [], dataset.entries(split)
    except TissError as error:
        return SplitReport(split, faults=[str(error)])
    entries = found.values()
    faults = faults + [entry.problem for entry in entries if entry.problem is not None]
    sizes = [(entry.width, entry.height) for entry in entries if entry.problem is None]
    sizes.sort(key=lambda size: (size[0] * size[1], size))
    smallest, largest = (sizes[0], sizes[-1]) if sizes else ((0, 0), (0, 0))
    pixels: Counter[int] = Counter()
    for entry in entries:
        pixels.update(entry.pixels)
    return SplitReport(split, len(entries), smallest, largest, dict(pixels), faults)


def shared_images(dataset: Dataset) -> list[str]:
    """Images that are byte for byte both in train and in test: scores on them measure memory."""
    if not isinstance(dataset, PairedDataset):
        return []
    by_size: dict[int, dict[str, list[str]]] = defaultdict(lambda: {split: [] for split in SPLITS})
    for split in SPLITS:
        for pair in dataset.listing(split).pairs.values():
            if isinstance(pair, Pair) and os.path.isfile(path := str(pair.image)):
                by_size[os.path.getsize(path)][split].append(path)
    found = []
    for paths in by_size.values():
        tested = {_digest(path): path for path in paths["test"] if paths["train"]}
        for path in paths["train"] if tested else ():
            if (same := tested.get(_digest(path))) is not None:
                found.append(f"{path}: the same image is in the test as {same}")
    return sorted(found)


def _digest(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


@dataclass(frozen=True)
class ClassCount:
    """One label value: its pixels and the images that hold it, by split."""

    label: int
    name: str
    pixels: dict[str, int]
    images: dict[str, int]


def count_classes(dataset: Dataset, splits: Sequence[str] = SPLITS) -> list[ClassCount]:
    """One row for each label value 0..K and for 255, from the class index where there is one."""
    names = {BACKGROUND: "background" if dataset.has_background else "no class"}
    names |= dict(enumerate(dataset.classes, 1)) | {IGNORE: "ignored"}
    counts = {split: pixel_counts(dataset, split).values() for split in splits}
    return [
        ClassCount(
            value,
            name,
            {split: sum(one.get(value, 0) for one in counts[split]) for split in splits},
            {split: sum(value in one for one in counts[split]) for split in splits},
        )
        for value, name in names.items()
    ]


def pixel_counts(dataset: Dataset, split: str) -> dict[str, dict[int, int]]:
    """For each id, the pixels of each label value."""
    dataset.classes_present(split)  # raises where a sample is faulty
    return {id: entry.pixels for id, entry in dataset.entries(split).items()}


def plot_counts(
    counts: Sequence[ClassCount],
    groups: Sequence[Sequence[int]],
    step_images: Mapping[str, Sequence[int]],
    title: str,
    path: Path,
) -> None:
    """Bars of each class's share of pixels, coloured by the step that adds it, and of each step's images.

    `groups` are the label values of each step; `step_images` the training images of each step by setup.
    """
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise TissError(f"{path}: the name must end in {', '.join(PLOT_SUFFIXES)}", setting="plot")
    from matplotlib.figure import Figure  # without pyplot: no display and no global state

    by_label = {row.label: row for row in counts}
    order = [value for group in groups for value in group]
    step_of = {value: step for step, group in enumerate(groups) for value in group}
    total = max(1, sum(row.pixels["train"] for row in counts))
    figure = Figure(figsize=(max(8.0, 0.28 * len(order) + 4), 4.5), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2, width_ratios=(3, 1))
    shares = [100 * by_label[value].pixels["train"] / total for value in order]
    left.bar(range(len(order)), shares, color=[f"C{step_of[value] % 10}" for value in order])
    names = [by_label[value].name for value in order]
    left.set_xticks(range(len(order)), names, rotation=90, fontsize=8 if len(order) < 60 else 5)
    if max(shares, default=0) > 10 * min(shares, default=0):  # else lengths of bars say what they mean
        left.set_yscale("log")
        left.yaxis.set_major_formatter("{x:g}")
        left.yaxis.set_minor_formatter("{x:g}")
    left.set_ylabel("% of training pixels")
    left.set_xlabel("classes, one colour per step")
    width = 0.8 / max(1, len(step_images))
    for number, (setup, images) in enumerate(step_images.items()):
        places = [step + (number - (len(step_images) - 1) / 2) * width for step in range(len(images))]
        right.bar(places, images, width, label=setup)
    right.set_xticks(range(len(groups)))
    right.set_xlabel("step")
    right.set_ylabel("training images")
    right.legend()
    stream = io.BytesIO()
    figure.savefig(stream, format=path.suffix[1:].lower(), dpi=150)
    write_bytes(path, stream.getvalue())
