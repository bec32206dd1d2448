"""Fixtures that many tests share."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from tiss.data.shapes import Shapes

torch.set_num_threads(1)  # small tensors: threads only get into each other's way

TINY_CLASSES = ("disc", "square", "triangle", "ring")


def write_folder(root: Path, train: int = 10, test: int = 4) -> Path:
    """Some drawn scenes as a `folder` data set of four classes, 32 × 32; other classes become background."""
    shapes = Shapes(size=32)
    (root / "classes.txt").parent.mkdir(parents=True, exist_ok=True)
    (root / "classes.txt").write_text("background\n" + "\n".join(TINY_CLASSES) + "\n")
    for split, count in (("train", train), ("test", test)):
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True)
        for id in shapes.ids(split)[:count]:
            sample = shapes.read(split, id)
            label = torch.where((sample.label > len(TINY_CLASSES)) & (sample.label != 255), 0, sample.label)
            Image.fromarray(sample.image.permute(1, 2, 0).numpy()).save(root / "images" / split / f"{id}.png")
            Image.fromarray(label.to(torch.uint8).numpy()).save(root / "masks" / split / f"{id}.png")
    return root


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A labelled folder that trains in a second."""
    return write_folder(tmp_path_factory.mktemp("tiny") / "data")


@pytest.fixture(scope="session")
def tiny_flags(tiny_folder: Path) -> list[str]:
    """Flags of `tiss run` for two quick steps on the tiny folder."""
    return [
        *("--data", "folder", "--data.root", str(tiny_folder), "--data.crop", "32", "--task", "2-2"),
        *("--model.encoder", "vit_micro_patch8", "--train.epochs", "1", "--train.batch", "4"),
        *("--train.recipe", "tuned", "--train.device", "cpu", "--train.log_every", "1"),
    ]
