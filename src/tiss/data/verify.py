"""Checks a data set file by file and lists everything that is wrong with it."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tiss.data.base import DATASETS, SPLITS, Dataset, Entry, read_entry
from tiss.data.images import load_image
from tiss.data.index import Pair, parallel_map, scan_pair
from tiss.data.paired import PairedDataset
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
    kind = DATASETS.get(name)
    if issubclass(kind, PairedDataset) and root:
        checked: tuple[Dataset, list[str]] = kind.for_checking(root)
        return checked
    return kind(root), []


def check_split(dataset: Dataset, split: str, decode: bool = True) -> SplitReport:
    """Reads every sample of `split`. With `decode`, images are decoded, else only headers and ends are checked."""
    report = SplitReport(split)
    if isinstance(dataset, PairedDataset):
        try:
            listing = dataset.listing(split)
        except TissError as error:
            report.faults.append(str(error))
            return report
        report.faults += listing.problems
        scan = partial(_scan, dataset=dataset, decode=decode)
        entries = list(parallel_map(scan, list(listing.pairs.values()), f"Reading {split}"))
    else:
        entries = list(
            parallel_map(partial(read_entry, dataset, split), dataset.ids(split), f"Reading {split}")
        )
    report.images = len(entries)
    report.faults += [entry.problem for entry in entries if entry.problem is not None]
    good = [entry for entry in entries if entry.problem is None]
    if good:
        by_size = sorted(good, key=lambda entry: (entry.width * entry.height, entry.width))
        report.smallest = (by_size[0].width, by_size[0].height)
        report.largest = (by_size[-1].width, by_size[-1].height)
    for entry in good:
        for value, count in entry.pixels.items():
            report.pixels[value] = report.pixels.get(value, 0) + count
    return report


def _scan(pair: Pair, dataset: PairedDataset, decode: bool) -> Entry:
    entry = scan_pair(pair, dataset.read_label, len(dataset.classes), whole=not decode)
    if decode and os.path.exists(pair.image):
        try:
            load_image(pair.image)
        except TissError as error:
            return Entry({}, problem=str(error))
    return entry


def shared_images(dataset: Dataset) -> list[str]:
    """Images that are byte for byte both in train and in test: scores on them measure memory."""
    if not isinstance(dataset, PairedDataset):
        return []
    by_size: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for split in SPLITS:
        for pair in dataset.listing(split).pairs.values():
            if os.path.isfile(pair.image):
                by_size[os.path.getsize(pair.image)][split].append(pair.image)
    found = []
    for paths in by_size.values():
        if len(paths) < 2:
            continue
        tested = {_digest(path): path for path in paths["test"]}
        found += [
            f"{path}: the same image is in the test as {tested[_digest(path)]}"
            for path in paths["train"]
            if _digest(path) in tested
        ]
    return sorted(found)


def _digest(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()
