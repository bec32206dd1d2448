"""Small made-up data sets on disk for the readers' tests."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def png(pixels: np.ndarray) -> bytes:
    """An image file: bool is black and white, as tools keep masks of objects."""
    data = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8) * 255 if pixels.dtype == bool else pixels).save(data, "PNG")
    return data.getvalue()


def write_picture(path: Path, width: int = 12, height: int = 8, value: int = 90) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((height, width, 3), value, np.uint8)).save(path)


def write_noise(path: Path, side: int = 64) -> None:
    """An image that takes many bytes, so that it can be cut short or damaged."""
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)).save(path)


def write_mask(path: Path, values: np.ndarray | list[int], width: int = 12, height: int = 8) -> None:
    """A grey PNG; a list of labels is spread over the columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = columns(values, width, height) if isinstance(values, list) else values
    Image.fromarray(values.astype(np.uint8)).save(path)


def columns(labels: list[int], width: int = 12, height: int = 8) -> np.ndarray:
    row = np.array([labels[column * len(labels) // width] for column in range(width)], np.uint8)
    return np.repeat(row[None], height, axis=0)


def make_voc(root: Path, train: dict[str, list[int]], test: dict[str, list[int]]) -> Path:
    """A devkit with the labels given for each id; returns the folder that holds VOCdevkit."""
    voc = root / "VOCdevkit" / "VOC2012"
    lists = voc / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    for name, ids in (("train_aug", train), ("val", test)):
        (lists / f"{name}.txt").write_text("".join(f"{id}\n" for id in ids))
        for id, labels in ids.items():
            write_picture(voc / "JPEGImages" / f"{id}.jpg")
            write_mask(voc / "SegmentationClassAug" / f"{id}.png", labels)
    return root


def make_folder(root: Path, classes: str = "background\ncat\ndog\n") -> Path:
    """Three training and one test sample: labels {0, 1}, {0, 2}, {1, 2, 255} and {0, 1, 2}."""
    for split, labels in (
        ("train", {"a": [0, 1], "b": [0, 2], "c": [1, 2, 255]}),
        ("test", {"d": [0, 1, 2]}),
    ):
        for stem, values in labels.items():
            write_picture(root / "images" / split / f"{stem}.jpg")
            write_mask(root / "masks" / split / f"{stem}.png", values)
    (root / "classes.txt").write_text(classes)
    return root
