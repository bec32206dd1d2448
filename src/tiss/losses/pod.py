"""Local POD (PLOP): the teacher's row and column means are kept, cell by cell, at several scales."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tiss.losses.upsampling import full_precision

SCALES = (1, 2, 4)


def local_pod(
    maps: Sequence[Tensor],
    teacher_maps: Sequence[Tensor],
    old_classes: int,
    new_classes: int,
    factor: float = 0.01,
    logits_factor: float = 0.0005,
    *,
    normalise: bool = False,
) -> Tensor:
    """Distance between the local POD embeddings of two models, the last map being the logits.

    Maps N × D × H × W; the student's logits have old + new channels, the teacher's old, and the raw new
    logits are added to the background's. Each map: Euclidean distance per image, mean over the batch, times
    its factor and sqrt((old + new) / new); mean over maps. `old_classes` counts the background; the teacher
    gets no gradient. `normalise` brings the embedding of each scale to length 1 first (PLOPLong, in our
    reading).

    >>> import torch
    >>> student, teacher = [torch.ones(1, 2, 4, 4)], [torch.zeros(1, 1, 4, 4)]
    >>> round(float(local_pod(student, teacher, 1, 1, logits_factor=1.0)), 4)  # 4 · sqrt(56 · 2)
    42.332
    """
    total = maps[0].new_zeros((), dtype=full_precision(maps[0]).dtype)
    last = len(maps) - 1
    for index, (student, teacher) in enumerate(zip(maps, teacher_maps, strict=True)):
        student, teacher = full_precision(student), full_precision(teacher.detach())
        if index == last:
            student = _fold_new_logits(student, old_classes)
        distance = _embed(student, normalise) - _embed(teacher, normalise)
        weight = logits_factor if index == last else factor
        total = total + weight * torch.linalg.vector_norm(distance, dim=1).mean()
    return total / len(maps) * math.sqrt((old_classes + new_classes) / new_classes)


def _fold_new_logits(logits: Tensor, old_classes: int) -> Tensor:
    """N × (old + new) × H × W to N × old × H × W, the new logits added to the background's."""
    background = logits[:, :1] + logits[:, old_classes:].sum(1, keepdim=True)
    return torch.cat([background, logits[:, 1:old_classes]], 1)


def _embed(feature_map: Tensor, normalise: bool) -> Tensor:
    """Row and column means of the squared map's cells at every scale, N × D × H × W to N × length."""
    squared = feature_map.square()
    images, channels, height, width = squared.shape
    parts = []
    for scale in SCALES:
        rows, columns = height // scale, width // scale
        if rows == 0 or columns == 0:  # a map smaller than the grid has no cells at this scale
            continue
        cells = squared[..., : rows * scale, : columns * scale]
        cells = cells.reshape(images, channels, scale, rows, scale, columns)
        part = torch.cat([cells.mean(5).flatten(1), cells.mean(3).flatten(1)], 1)
        parts.append(torch.nn.functional.normalize(part, dim=1) if normalise else part)
    return torch.cat(parts, 1)
