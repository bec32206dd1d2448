"""A user's folders, drawn: `shapes` written to disk the way people keep their images; and helpers of these tests."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tiss.cli.main import main
from tiss.data.shapes import Shapes

# one colour per class: a model this small learns nothing from so few images in the drawings' own colours
_PAINT = np.random.default_rng(0).integers(0, 256, (256, 3)).astype(np.uint8)
Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
Refused = Said = Callable[..., str]  # fixtures
# of a first model that keeps sums
SOLVED = (
    "--encoder",
    "vit_micro_patch8",
    "--method",
    "analytic",
    "--epochs",
    20,
    "--lr",
    0.01,
    "--device",
    "cpu",
)
QUICK = ("--epochs", "30", "--batch", "4", "--lr", "0.01", "--device", "cpu")


def tiss(*arguments: object) -> None:
    """Runs a command that must succeed."""
    assert main([str(word) for word in arguments]) == 0


def write_folder(
    root: Path,
    classes: Sequence[str],
    count: int,
    *,
    seed: int = 0,
    listed: Sequence[str] | None = None,
    side: int = 32,
) -> Path:
    """`count` images that show one of `classes`; masks mark those of `listed` (None: `classes`) only.

    With an empty `listed`, there is no class list and masks number `classes` 1, 2, ….
    """
    names = list(classes if listed is None else listed)
    shapes = Shapes(seed=seed, size=side, train=400, test=1)
    images, labels = shapes.arrays("train")
    table = np.zeros(256, np.uint8)
    table[255] = 255
    for number, name in enumerate(names or classes, 1):
        table[shapes.classes.index(name) + 1] = number
    wanted = [shapes.classes.index(name) + 1 for name in classes]
    (root / "images").mkdir(parents=True)
    (root / "masks").mkdir()
    chosen = [index for index in range(len(images)) if np.isin(labels[index], wanted).any()][:count]
    for index in chosen:
        image = images[index].transpose(1, 2, 0).copy()
        shown = (labels[index] > 0) & (labels[index] < 255)
        image[shown] = _PAINT[labels[index][shown]]
        Image.fromarray(image).save(root / "images" / f"scene-{index:03d}.png")
        Image.fromarray(table[labels[index]]).save(root / "masks" / f"scene-{index:03d}.png")
    if names:
        (root / "classes.txt").write_text("\n".join(["background", *names]) + "\n")
    return root


def play(folder: Path) -> Path:
    """A user's evening at the smallest size: a first model, then two new classes, one after the other."""
    write_folder(folder / "warehouse", ["disc", "square"], 20)
    write_folder(folder / "tonight", ["star"], 8, seed=1, listed=[])
    write_folder(folder / "tomorrow", ["moon"], 8, seed=2, listed=["disc", "square", "star", "moon"])
    first = ["--encoder", "vit_micro_patch8", "--epochs", 60, "--batch", 8, "--lr", 0.01, "--device", "cpu"]
    tiss("train", folder / "warehouse", "--out", folder / "first", *first)
    tiss(*second_step(folder, folder / "second"))
    third = ["--data", folder / "tomorrow", "--method", "mib", "--out", folder / "third"]
    tiss("extend", folder / "second", *third, *QUICK)
    return folder


def extending(model: Path, data: Path, out: Path, *more: object) -> list[object]:
    """The command that teaches a model what a folder shows."""
    return ["extend", model, "--data", data, "--out", out, "--device", "cpu", *more]


def second_step(folder: Path, out: Path) -> list[str]:
    """The command that makes `second` of `first`."""
    words = ["extend", folder / "first", "--data", folder / "tonight", "--classes", "star", "--out", out]
    return [*map(str, words), "--method", "recall", *QUICK]


def change(path: Path) -> None:
    """Another last byte."""
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
