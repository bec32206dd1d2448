"""How often each class occurs in a data set: pixels and images, as numbers and as a plot."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tiss.data.base import BACKGROUND, IGNORE, SPLITS, Dataset
from tiss.errors import TissError
from tiss.files import write_bytes

PLOT_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class ClassCount:
    """One label value: its pixels and the images that hold it, by split."""

    label: int
    name: str
    pixels: dict[str, int]
    images: dict[str, int]


def count_classes(dataset: Dataset, splits: Sequence[str] = SPLITS) -> list[ClassCount]:
    """One row for each label value 0..K and for 255, from the class index where there is one."""
    names = {BACKGROUND: "background" if dataset.has_background else "no class", IGNORE: "ignored"}
    names |= dict(enumerate(dataset.classes, 1))
    pixels = {split: np.zeros(256, np.int64) for split in splits}
    images = {split: np.zeros(256, np.int64) for split in splits}
    for split in splits:
        for counts in pixel_counts(dataset, split).values():
            for value, count in counts.items():
                pixels[split][value] += count
                images[split][value] += 1
    return [
        ClassCount(
            value,
            names[value],
            {split: int(pixels[split][value]) for split in splits},
            {split: int(images[split][value]) for split in splits},
        )
        for value in [*range(len(dataset.classes) + 1), IGNORE]
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
