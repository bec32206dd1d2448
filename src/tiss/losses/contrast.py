"""Cross-entropy of the rows of a cosine matrix against its diagonal, without keeping the matrix.

n × n similarities are made for some images or rows at a time and at once turned into their loss and their
gradient, which only scales with what comes from above; so they are made once and nothing of n × n is kept.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from tiss.losses.backends import has_triton
from tiss.losses.chunks import chunks
from tiss.losses.precision import full_precision


def contrast(tokens: Tensor, reference: Tensor, signed: bool, tau: float) -> Tensor:
    """Mean over images and rows i of −log softmax(P_i / tau)_i, P_ij = |cos(tokens_i, reference_j)|, or with its sign.

    Both arguments N × n × D; the gradient reaches both.
    """
    if tokens.is_cuda and has_triton():
        from tiss.losses import triton_contrast

        if triton_contrast.fits(tokens, reference):
            return triton_contrast.contrast(tokens, reference, signed, tau)
    left = unit(tokens)
    result: Tensor = _DiagonalCrossEntropy.apply(left if tau == 1 else left / tau, unit(reference), signed)
    return result


def unit(tokens: Tensor) -> Tensor:
    """Tokens as unit vectors, in float32 at least."""
    return F.normalize(full_precision(tokens), dim=-1)


class _DiagonalCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, signed: bool) -> Tensor:
        with_left, with_right = ctx.needs_input_grad[:2]
        to_left = torch.empty_like(left) if with_left else None
        to_right = torch.zeros_like(right) if with_right else None
        losses = left.new_empty(left.shape[:2])
        for images, rows in chunks(left):
            similarity = left[images, rows] @ right[images].transpose(1, 2)
            losses[images, rows], gradient = reduce_rows(
                similarity, rows.start, signed, with_left or with_right
            )
            if to_left is not None:
                to_left[images, rows] = gradient @ right[images]
            if to_right is not None:
                to_right[images].baddbmm_(gradient.transpose(1, 2), left[images, rows])
        ctx.save_for_backward(to_left, to_right)
        ctx.scale = 1 / losses.numel()
        return losses.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        scale = upstream * ctx.scale
        to_left, to_right = (None if saved is None else saved * scale for saved in ctx.saved_tensors)
        return to_left, to_right, None


def reduce_rows(similarity: Tensor, first: int, signed: bool, with_gradient: bool) -> tuple[Tensor, Tensor]:
    """Cross-entropy of row i of images × rows × n against column first + i, and its gradient by the row.

    The similarities are overwritten. Without `with_gradient` the second result means nothing.
    """
    log_probability = (similarity if signed else similarity.abs()).log_softmax(2)
    losses = -log_probability.diagonal(first, dim1=1, dim2=2)
    if not with_gradient:
        return losses, similarity
    gradient = log_probability.exp()
    gradient.diagonal(first, dim1=1, dim2=2).sub_(1)
    return losses, gradient if signed else gradient.mul_(similarity.sign_())
