"""What a data set holds, file by file: everything that is wrong with it, and how often each class occurs."""

import hashlib
import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tiss.data.base import BACKGROUND, DATASETS, IGNORE, SPLITS, Dataset
from tiss.data.classes import MOST_CLASSES, ClassList
from tiss.data.folder import Folder, PairedDataset
from tiss.data.index import Pair
from tiss.errors import TissError


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
    sizes = [(entry.width, entry.height) for entry in entries if entry.problem is None] or [(0, 0)]
    sizes.sort(key=lambda size: (size[0] * size[1], size))
    pixels: Counter[int] = Counter()
    for entry in entries:
        pixels.update(entry.pixels)
    return SplitReport(split, len(entries), sizes[0], sizes[-1], dict(pixels), faults)


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


def jpeg_masks(dataset: Dataset) -> list[str]:
    """One line about masks whose bytes are JPEG, whatever their names: labels at borders may be wrong."""
    if not isinstance(dataset, PairedDataset):
        return []
    masks = [
        pair.mask
        for split in SPLITS
        for pair in dataset.listing(split).pairs.values()
        if isinstance(pair, Pair)
    ]
    found = [path for path in masks if isinstance(path, str) and _is_jpeg(path)]
    return (
        [f"masks that are JPEG files, with inexact labels: {len(found)}, the first {found[0]}"]
        if found
        else []
    )


def _is_jpeg(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\xff\xd8"


def _digest(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


@dataclass(frozen=True)
class ClassCount:
    """One label value: its pixels and the images that hold it, by split."""

    label: int
    name: str
    pixels: dict[str, int]
    images: dict[str, int]


def count_classes(dataset: Dataset) -> list[ClassCount]:
    """One row for each label value 0..K and for 255, from the class index where there is one."""
    names = {BACKGROUND: "background" if dataset.has_background else "no class"}
    names |= dict(enumerate(dataset.classes, 1)) | {IGNORE: "ignored"}
    counts = {split: pixel_counts(dataset, split).values() for split in SPLITS}
    return [
        ClassCount(
            value,
            name,
            {split: sum(one.get(value, 0) for one in counts[split]) for split in SPLITS},
            {split: sum(value in one for one in counts[split]) for split in SPLITS},
        )
        for value, name in names.items()
    ]


def pixel_counts(dataset: Dataset, split: str) -> dict[str, dict[int, int]]:
    """For each id, the pixels of each label value."""
    dataset.classes_present(split)  # raises where a sample is faulty
    return {id: entry.pixels for id, entry in dataset.entries(split).items()}
