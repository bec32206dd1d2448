"""`compare`: two models on a user's pictures, with labels where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tiss.data.base import IGNORE
from tiss.engine.progress import Reporter
from tiss.errors import TissError
from tiss.files import atomic_folder, write_bytes, write_json, write_text
from tiss.user.comparison import Comparison, Material, compare_models, joint_space
from tiss.user.drawing import to_png
from tiss.user.inputs import find_items, read_item
from tiss.user.lesson import LabelledFolder, open_folder
from tiss.user.page import render, worst_pictures
from tiss.user.segment import Segmenter


def open_material(data: str, old: Sequence[str], new: Sequence[str]) -> Material:
    """The pictures of `data`: a labelled folder (its test pictures where it has any), or pictures alone."""
    space = joint_space(old, new)
    if (Path(data).expanduser() / "masks").is_dir():
        return _labelled(open_folder(data), space)
    items = [item for item in find_items([data]) if not item.is_video]
    if not items:
        raise TissError(f"--data {data}: no pictures there (videos are not compared)")
    return Material(tuple(item.name for item in items), lambda index: (read_item(items[index]), None), space)


def _labelled(dataset: LabelledFolder, space: tuple[str, ...]) -> Material:
    split = "test" if dataset.has_test() else "train"
    dataset.classes_present(split)  # a mask with an unknown number ends here, not in the middle
    ids = tuple(dataset.ids(split))
    table = np.zeros(256, np.uint8)
    table[IGNORE] = IGNORE
    labelled = set()
    for value, name in enumerate(dataset.classes, 1):
        if name in space:
            table[value] = space.index(name)
            labelled.add(name)
    if not labelled:
        raise TissError(
            f"{dataset.root_path()}: neither model knows a class of its list ({', '.join(dataset.classes)})"
        )
    if dataset.has_background and labelled >= set(space[1:]):
        labelled.add(space[0])
    channels = torch.from_numpy(table)

    def read(index: int) -> tuple[Tensor, Tensor | None]:
        sample = dataset.read(split, ids[index])
        return sample.image, channels[sample.label.long()]

    return Material(ids, read, space, frozenset(labelled))


def compare_on(
    old: Segmenter, new: Segmenter, data: str, title: str, out: Path | None, reporter: Reporter
) -> Comparison:
    """Compares, and writes report.html, report.json and a PNG for each of the worst pictures into `out`."""
    material = open_material(data, old.model.classes, new.model.classes)
    result = compare_models(old, new, material, reporter)
    if out is not None:
        pictures = worst_pictures(result, material, old, new)
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(out) as folder:
            for number, (_, picture) in enumerate(pictures, 1):
                write_bytes(folder / f"worst-{number}.png", to_png(picture))
            write_json(folder / "report.json", result.to_json())
            write_text(folder / "report.html", render(title, [], result, pictures))
    return result
