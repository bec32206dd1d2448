"""What a data set is, and the one batch contract.

A data set numbers its labels itself: 0 is the background (or "other"), 1..K are its classes in its own order,
255 is ignored. Which of them a model learns when, and in which channel, is the scenario's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tiss.registry import Registry

IGNORE = 255
BACKGROUND = 0


@dataclass(frozen=True)
class Sample:
    """One picture and its mask, as read from disk: original size, the data set's own label numbers."""

    image: Tensor  # uint8, 3 × H × W, RGB
    label: Tensor  # uint8, H × W
    id: str


@runtime_checkable
class Dataset(Protocol):
    """A labelled collection with named splits. `train` and `test` are what the scenario asks for."""

    name: str
    classes: tuple[str, ...]  # foreground classes; label value i + 1 is classes[i]
    has_background: bool  # False: label 0 means "not a class yet" and never enters a mean
    background_in_test: (
        int  # what label 0 becomes in a test: 0, or 255 where it is no class (ADE20K's "other")
    )

    def ids(self, split: str) -> list[str]:
        """Sorted ids of `split` ("train" or "test")."""
        ...

    def read(self, split: str, id: str) -> Sample:
        """Reads one sample; a broken file raises a TissError that names it."""
        ...

    def classes_present(self, split: str) -> dict[str, frozenset[int]]:
        """For each id of `split`, the label values in its mask (0 and 255 left out), from the cached class index."""
        ...

    def colours(self) -> list[tuple[int, int, int]] | None:
        """The customary RGB colour of label values 0..K, or None for the package's own palette."""
        ...

    def root_path(self) -> Path | None:
        """Where the files lie; None for data made in memory."""
        ...


@dataclass
class Batch:
    """What the engine hands to models and methods.

    `image` is uint8 N × 3 × H × W; `label` is int64 N × H × W in *channel* numbers, 255 = ignore, 0 = background.
    Normalisation lives in the model, so files, augmentations and exports cannot disagree about it.
    """

    image: Tensor
    label: Tensor
    ids: list[str]

    def to(self, device: torch.device | str) -> Batch:
        return Batch(
            self.image.to(device, non_blocking=True), self.label.to(device, non_blocking=True), self.ids
        )


DATASETS: Registry[type] = Registry(
    "data set",
    "datasets",
    (
        "tiss.data.shapes",
        "tiss.data.voc",
        "tiss.data.ade20k",
        "tiss.data.cityscapes",
        "tiss.data.folder",
        "tiss.data.huggingface",
    ),
)
