"""A user's folders, drawn: `shapes` written to disk the way that people keep their pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from tiss.data.shapes import Shapes

# one colour for each class: in the drawings' own colours, so small a model learns nothing from so few
_PAINT = np.random.default_rng(0).integers(0, 256, (256, 3)).astype(np.uint8)


def write_folder(
    root: Path,
    classes: Sequence[str],
    count: int,
    *,
    seed: int = 0,
    listed: Sequence[str] | None = None,
    side: int = 32,
) -> Path:
    """`count` pictures that show one of `classes`; masks mark those of `listed` (None: `classes`) only.

    With an empty `listed`, there is no class list and masks number `classes` 1, 2, ….
    """
    names = list(classes if listed is None else listed)
    shapes = Shapes(seed=seed, size=side, train=400, test=1)
    images, labels = shapes.arrays("train")
    numbers = {name: index + 1 for index, name in enumerate(names or classes)}
    table = np.zeros(256, np.uint8)
    table[255] = 255
    for name, number in numbers.items():
        table[shapes.classes.index(name) + 1] = number
    wanted = [shapes.classes.index(name) + 1 for name in classes]
    (root / "images").mkdir(parents=True)
    (root / "masks").mkdir()
    chosen = [index for index in range(len(images)) if np.isin(labels[index], wanted).any()][:count]
    for index in chosen:
        picture = images[index].transpose(1, 2, 0).copy()
        shown = (labels[index] > 0) & (labels[index] < 255)
        picture[shown] = _PAINT[labels[index][shown]]
        Image.fromarray(picture).save(root / "images" / f"scene-{index:03d}.png")
        Image.fromarray(table[labels[index]]).save(root / "masks" / f"scene-{index:03d}.png")
    if names:
        (root / "classes.txt").write_text("\n".join(["background", *names]) + "\n")
    return root


def play(folder: Path) -> Path:
    """A user's evening at the smallest size: a first model, then two new classes, one after the other."""
    from tiss.cli.main import main

    write_folder(folder / "warehouse", ["disc", "square"], 20)
    write_folder(folder / "tonight", ["star"], 8, seed=1, listed=[])
    write_folder(folder / "tomorrow", ["moon"], 8, seed=2, listed=["disc", "square", "star", "moon"])
    first = [
        "train",
        str(folder / "warehouse"),
        "--out",
        str(folder / "first"),
        "--epochs",
        "60",
        "--batch",
        "8",
    ]
    assert main([*first, "--encoder", "vit_micro_patch8", "--lr", "0.01", "--device", "cpu"]) == 0
    assert main(second_step(folder, folder / "second")) == 0
    third = ["extend", str(folder / "second"), "--data", str(folder / "tomorrow"), "--method", "mib"]
    assert main([*third, "--out", str(folder / "third"), *QUICK]) == 0
    return folder


QUICK = ("--epochs", "30", "--batch", "4", "--lr", "0.01", "--device", "cpu")


def second_step(folder: Path, out: Path) -> list[str]:
    """The command that makes `second` of `first`."""
    command = ["extend", str(folder / "first"), "--data", str(folder / "tonight"), "--classes", "star"]
    return [*command, "--out", str(out), *QUICK]
