"""What a conversion came to, so that a slip in a label shows at once and not in a trained model."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tiss.data.classes import BACKGROUND_NAMES, IGNORE_NAMES
from tiss.data.convert.writing import Found, Written
from tiss.data.images import has_image_suffix


@dataclass(frozen=True)
class ClassSummary:
    """How much of a class there is."""

    name: str
    pictures: int  # whose mask has a pixel of it
    objects: int | None  # outlines of it in the labels; None where they came as masks
    share: float  # of all pixels


def summarise(found: Found, written: Written) -> list[ClassSummary]:
    """A summary of each class that was written, in order."""
    pictures: Counter[int] = Counter()
    pixels: Counter[int] = Counter()
    for mask in written.pixels:
        pictures.update(mask.keys())
        pixels.update(mask)
    objects = Counter(label for item in found.pictures for label, _ in item.objects)
    drawn = any(item.mask is None for item in found.pictures)
    total = max(1, sum(pixels.values()))
    return [
        ClassSummary(name, pictures[value], objects[name] if drawn else None, pixels[value] / total)
        for value, name in enumerate(written.classes, 1)
    ]


def find_lookalikes(names: Iterable[str]) -> list[list[str]]:
    """Groups of class names that differ only in upper and lower case, spaces, hyphens or underscores.

    >>> find_lookalikes(["tv", "dog", "Tv", "road sign", "road_sign"])
    [['tv', 'Tv'], ['road sign', 'road_sign']]
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        if name.lower() in BACKGROUND_NAMES + IGNORE_NAMES:
            continue  # these have many forms, and all mean the same
        groups["".join(name.replace("-", " ").replace("_", " ").split()).casefold()].append(name)
    return [group for group in groups.values() if len(group) > 1]


def find_unlabelled(found: Found) -> list[Path]:
    """Pictures that lie beside labelled ones and are in no label file, by name."""
    labelled = {os.path.abspath(item.image) for item in found.pictures}
    folders = sorted({item.image.parent for item in found.pictures})
    pictures = {os.path.abspath(path): path for folder in folders for path in sorted(folder.iterdir())}
    return [
        path
        for place, path in pictures.items()
        if place not in labelled and has_image_suffix(path) and path.is_file()
    ]
