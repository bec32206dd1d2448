"""A data set and a configuration so small that a whole run takes a second."""

from __future__ import annotations

from typing import Any

import torch

from tiss.config import RunConfig, from_mapping
from tiss.data.base import DATASETS, Dataset, Sample
from tiss.randomness import stream

SIDE = 36
CLASSES = 4
COUNTS = {"train": 16, "test": 6}


@DATASETS.register("toy")
class ToyData(Dataset):
    """Two bright rectangles on noise; a class is a colour. The rectangle's first row is to be ignored."""

    name = "toy"
    classes = tuple(f"class{value}" for value in range(1, CLASSES + 1))
    default_crop = 32
    default_task = "2-1"

    def __init__(self, root: str | None = None) -> None:
        self.reads = 0

    def ids(self, split: str) -> list[str]:
        return [f"{split}{index:02d}" for index in range(COUNTS[split])]

    def read(self, split: str, id: str) -> Sample:
        self.reads += 1
        rng = stream(0, "toy", split, id)
        image = torch.from_numpy(rng.integers(0, 90, (3, SIDE, SIDE)))
        label = torch.zeros(SIDE, SIDE, dtype=torch.uint8)
        for place, value in enumerate(self._values(id)):
            top, left = (int(offset) for offset in rng.integers(1, 5, 2))
            box = (slice(top, top + 28), slice(left + 16 * place, left + 16 * place + 14))
            image[(value % 3, *box)] += 40 * value
            label[box] = value
            label[top, box[1]] = 255
        return Sample(image.to(torch.uint8), label, id)

    def _values(self, id: str) -> tuple[int, int]:
        index = int(id[-2:])
        return index % CLASSES + 1, (index // CLASSES + index) % CLASSES + 1

    def classes_present(self, split: str) -> dict[str, frozenset[int]]:
        return {id: frozenset(self._values(id)) for id in self.ids(split)}


TRAIN = {
    "recipe": "demo",
    "epochs": 1,
    "step_epochs": 1,
    "batch": 2,
    "warmup": 1,
    "device": "cpu",
    "loader": "memory",
    "compile": "off",
    "save_every": 2,
    "log_every": 1,
}


def toy_config(
    method: Any = "mib", encoder: str = "vit_micro_patch8", decoder: str | None = None, **more: Any
) -> RunConfig:
    """Three steps (2, 1 and 1 classes) on the toy data; `more` replaces sections, or keys of `train`."""
    train = TRAIN | more.pop("train", {})
    mapping = {
        "data": {"name": "toy", "scale": [0.8, 1.25]},
        "model": {"encoder": encoder, "decoder": decoder},
        "train": train,
        "method": method,
    }
    return from_mapping(RunConfig, mapping | more)
