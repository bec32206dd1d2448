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

from tiss.losses.backends import has_triton

CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 23}  # what stays in the cache of a core, of a GPU


def diagonal_cross_entropy(left: Tensor, right: Tensor, signed: bool, tau: float) -> Tensor:
    """Mean over images and rows i of −log softmax(P_i / tau)_i, P = |left @ rightᵀ|, or with its sign.

    Both arguments N × n × D, of unit length along D; the gradient reaches both.
    """
    result: Tensor = _DiagonalCrossEntropy.apply(left / tau, right, signed)
    return result


class _DiagonalCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, signed: bool) -> Tensor:
        losses = left.new_empty(left.shape[:2])
        for images, rows in _chunks(left):
            similarity = left[images, rows] @ right[images].transpose(1, 2)
            losses[images, rows] = _row_losses(similarity, rows.start, signed)
        ctx.save_for_backward(left, right)
        ctx.signed = signed
        return losses.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        left, right = ctx.saved_tensors
        with_left, with_right = ctx.needs_input_grad[:2]
        to_left = torch.empty_like(left) if with_left else None
        to_right = torch.zeros_like(right) if with_right else None
        for images, rows in _chunks(left):
            similarity = left[images, rows] @ right[images].transpose(1, 2)
            gradient = _row_gradients(similarity, rows.start, ctx.signed)
            if to_left is not None:
                to_left[images, rows] = gradient @ right[images]
            if to_right is not None:
                to_right[images].baddbmm_(gradient.transpose(1, 2), left[images, rows])
        scale = upstream / (left.shape[0] * left.shape[1])
        return (
            None if to_left is None else to_left.mul_(scale),
            None if to_right is None else to_right.mul_(scale),
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


def _row_losses(similarity: Tensor, first: int, signed: bool) -> Tensor:
    """Cross-entropy of row i of images × rows × n against column first + i."""
    if similarity.is_cuda and has_triton():
        from tiss.losses import triton_contrast

        if triton_contrast.fits(similarity):
            return triton_contrast.row_losses(similarity, first, signed)
    strength = similarity if signed else similarity.abs_()
    return -_diagonal(strength.log_softmax(2), first)


def _row_gradients(similarity: Tensor, first: int, signed: bool) -> Tensor:
    """Gradient of the same by the similarities."""
    if similarity.is_cuda and has_triton():
        from tiss.losses import triton_contrast

        if triton_contrast.fits(similarity):
            return triton_contrast.row_gradients(similarity, first, signed)
    gradient = (similarity if signed else similarity.abs()).softmax(2)
    _diagonal(gradient, first).sub_(1)
    return gradient if signed else gradient.mul_(similarity.sign_())


def _diagonal(similarity: Tensor, first: int) -> Tensor:
    """A view of row i's entry in column first + i, images × rows."""
    return similarity.diagonal(first, dim1=1, dim2=2)
