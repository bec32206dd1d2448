"""A sample is checked where it is read, so that a wrong file is named and never trained on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tiss.data.base import IGNORE, Dataset, Sample
from tiss.errors import TissError


def read_checked(dataset: Dataset, split: str, id: str) -> Sample:
    """Reads one sample; a shape, type or label value that breaks the contract is an error naming the id."""
    sample = dataset.read(split, id)
    where = f"{dataset.name} {split} {id}"
    if sample.image.dtype != torch.uint8 or sample.image.ndim != 3 or sample.image.shape[0] != 3:
        raise TissError(f"{where}: the image must be uint8 3×H×W, found {_described(sample.image)}")
    if sample.label.dtype != torch.uint8 or sample.label.shape != sample.image.shape[1:]:
        height, width = sample.image.shape[1:]
        raise TissError(
            f"{where}: the mask must be uint8 {height}×{width} as its image, found {_described(sample.label)}"
        )
    if 0 in sample.label.shape:
        raise TissError(f"{where}: the image is empty")
    illegal = illegal_labels(sample.label, len(dataset.classes))
    if illegal:
        listed = ", ".join(map(str, illegal[:8]))
        raise TissError(
            f"{where}: label {listed} in the mask; legal are 0 to {len(dataset.classes)} and {IGNORE}"
        )
    return sample


def illegal_labels(label: Tensor, classes: int) -> list[int]:
    """The values in a mask that are neither background, nor one of `classes`, nor ignored."""
    values = label.numpy()
    if int((values + np.uint8(1)).max(initial=0)) <= classes + 1:  # 255 + 1 is 0
        return []
    return [value for value in np.unique(values).tolist() if value > classes and value != IGNORE]


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {'×'.join(map(str, tensor.shape))}"
