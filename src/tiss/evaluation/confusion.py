"""The confusion matrix: whole numbers only, so that adding it up over batches and processes is exact."""

from __future__ import annotations

import torch
import torch.distributed
from torch import Tensor

from tiss.data.base import IGNORE


def confusion_matrix(prediction: Tensor, label: Tensor, classes: int) -> Tensor:
    """Counts pixels: row = true class, column = predicted class, int64 classes × classes.

    `prediction` and `label` hold channel numbers, in the same shape; pixels whose label is 255 do not count.

    >>> confusion_matrix(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 255]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    if prediction.shape != label.shape:
        raise ValueError(
            f"prediction {tuple(prediction.shape)} and label {tuple(label.shape)} differ in shape"
        )
    if prediction.numel() and int(prediction.max()) >= classes:
        raise ValueError(f"prediction {int(prediction.max())} is not one of {classes} channels")
    label, prediction = label.long(), prediction.long()
    # ignored pixels get a bin of their own: selecting the others would cost a copy of both tensors
    bins = torch.where(label == IGNORE, 0, 1 + label * classes + prediction)
    counts = torch.bincount(bins.flatten(), minlength=classes * classes + 1)
    if len(counts) > classes * classes + 1:
        raise ValueError(
            f"label {(len(counts) - 2) // classes} is neither one of {classes} channels nor {IGNORE}"
        )
    return counts[1:].reshape(classes, classes)


def sum_over_processes(matrix: Tensor) -> Tensor:
    """The sum of every process's matrix, in each of them; the matrix itself where there is one process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        matrix = matrix.clone()
        torch.distributed.all_reduce(matrix)
    return matrix
