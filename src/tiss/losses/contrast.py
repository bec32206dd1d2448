"""Cross-entropy of the rows of a cosine matrix against its diagonal, without keeping the matrix.

n × n similarities are made for some images or rows at a time, reduced at once, and made again in the backward
pass: cheaper than to write them to memory and read them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 23}  # what stays in the cache of a core, of a GPU


def diagonal_cross_entropy(left: Tensor, right: Tensor, signed: bool, tau: float) -> Tensor:
    """Mean over images and rows i of −log softmax(P_i / tau)_i, P = |left @ rightᵀ|, or with its sign.

    Both arguments N × n × D, of unit length along D; the gradient reaches both.
    """
    result: Tensor = _DiagonalCrossEntropy.apply(left, right, signed, tau)
    return result


class _DiagonalCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, signed: bool, tau: float) -> Tensor:
        log_sums = left.new_empty(left.shape[:2])
        total = left.new_zeros(())
        for images, rows in _chunks(left):
            similarity = left[images, rows] @ right[images].transpose(1, 2)
            if not signed:
                similarity.abs_()
            similarity.div_(tau)
            positive = _diagonal(similarity, rows).clone()
            largest = similarity.amax(2)
            log_sum = largest + similarity.sub_(largest.unsqueeze(2)).exp_().sum(2).log()
            log_sums[images, rows] = log_sum
            total += (log_sum - positive).sum()
        ctx.save_for_backward(left, right, log_sums)
        ctx.signed, ctx.tau = signed, tau
        return total / log_sums.numel()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        left, right, log_sums = ctx.saved_tensors
        with_left, with_right = ctx.needs_input_grad[:2]
        to_left = torch.empty_like(left) if with_left else None
        to_right = torch.zeros_like(right) if with_right else None
        for images, rows in _chunks(left):
            similarity = left[images, rows] @ right[images].transpose(1, 2)
            weight = similarity.clone() if ctx.signed else similarity.abs()
            weight.div_(ctx.tau).sub_(log_sums[images, rows].unsqueeze(2)).exp_()
            _diagonal(weight, rows).sub_(1)
            if not ctx.signed:
                weight.mul_(similarity.sign_())
            if to_left is not None:
                to_left[images, rows] = weight @ right[images]
            if to_right is not None:
                to_right[images].baddbmm_(weight.transpose(1, 2), left[images, rows])
        scale = upstream / (log_sums.numel() * ctx.tau)
        return (
            None if to_left is None else to_left.mul_(scale),
            None if to_right is None else to_right.mul_(scale),
            None,
            None,
        )


def _chunks(left: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of images and of rows whose similarities fit into the budget."""
    count, patches = left.shape[:2]
    budget = CHUNK_ELEMENTS.get(left.device.type, CHUNK_ELEMENTS["cpu"])
    images = max(1, budget // (patches * patches))
    rows = patches if images > 1 else max(1, min(patches, budget // patches))
    for image in range(0, count, images):
        for row in range(0, patches, rows):
            yield slice(image, image + images), slice(row, min(row + rows, patches))


def _diagonal(similarity: Tensor, rows: slice) -> Tensor:
    """A view of the entries of rows `rows` on the whole matrix's diagonal, images × rows."""
    return similarity.diagonal(rows.start, dim1=1, dim2=2)[:, : rows.stop - rows.start]
