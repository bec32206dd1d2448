"""Bilinear upsampling as two small matrices: the same weights as `F.interpolate(align_corners=False)`.

A row of a matrix has at most two entries, those of the source's neighbours. Written as matrix products, both
the interpolation and its gradient are deterministic on every device.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from tiss.models.contract import Resolution


@lru_cache(maxsize=64)
def interpolation_matrix(
    source: int, target: int, size: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The first `size` of `target` output rows as weights of `source` input rows, size × source.

    >>> interpolation_matrix(2, 4, 4, torch.float32, torch.device("cpu")).tolist()
    [[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]
    """
    matrix = torch.zeros(size, source, dtype=torch.float64)
    for row in range(size):
        # Half-pixel centres, exactly; beyond the outer centres the border value holds.
        position = Fraction((2 * row + 1) * source - target, 2 * target)
        position = min(max(position, Fraction(0)), Fraction(source - 1))
        lower = int(position)
        upper = min(lower + 1, source - 1)
        weight = float(position - lower)
        matrix[row, lower] += 1 - weight
        matrix[row, upper] += weight
    return matrix.to(device=device, dtype=dtype)


def row_and_column_matrices(logits: Tensor, to: Resolution) -> tuple[Tensor, Tensor]:
    """H × h and W × w, for logits N × C × h × w."""
    height, width = logits.shape[-2:]
    kind, device = logits.dtype, logits.device
    return (
        interpolation_matrix(height, to.padded[0], to.size[0], kind, device),
        interpolation_matrix(width, to.padded[1], to.size[1], kind, device),
    )


def widen(logits: Tensor, columns: Tensor) -> Tensor:
    """N × C × h × w to h × (N·C·W): columns upsampled, rows first, so that they become one product too."""
    return (logits.permute(2, 0, 1, 3) @ columns.t()).flatten(1)
