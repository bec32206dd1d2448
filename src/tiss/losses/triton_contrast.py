"""Rows of a similarity matrix reduced, or turned into their gradient, in one pass by a Triton kernel."""

# Triton compiles the kernel: constants are upper-case arguments, and types follow from the call.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST_ROW = 8192  # that one program takes in whole


@triton.jit(do_not_specialize=["columns", "rows", "first"])
def row_kernel(
    similarity, losses, columns, rows, first,
    SIGNED: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Row i's cross-entropy against column first + i; or, in place, its gradient by the row."""
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    exists = column < columns
    own = column == first + program % rows
    similarity += program.to(tl.int64) * columns + column
    value = tl.load(similarity, mask=exists, other=0.0)
    strength = value if SIGNED else tl.abs(value)
    strength = tl.where(exists, strength, -1.0e30)
    largest = tl.max(strength, 0)
    weight = tl.exp(strength - largest)
    total = tl.sum(weight, 0)
    if GRADIENT:
        weight = weight / total - tl.where(own, 1.0, 0.0)
        if not SIGNED:
            weight = tl.where(value > 0, weight, tl.where(value < 0, -weight, 0.0))
        tl.store(similarity, weight, mask=exists)
    else:
        positive = tl.sum(tl.where(own, strength, 0.0), 0)
        tl.store(losses + program, largest + tl.log(total) - positive)


def row_losses(similarity: Tensor, first: int, signed: bool) -> Tensor:
    """Cross-entropy of each row of images × rows × n against its own column, images × rows."""
    losses = similarity.new_empty(similarity.shape[:2])
    _launch(similarity, losses, first, signed, gradient=False)
    return losses


def row_gradients(similarity: Tensor, first: int, signed: bool) -> Tensor:
    """Gradient of each row's cross-entropy by the row, in place of the similarities."""
    _launch(similarity, similarity, first, signed, gradient=True)
    return similarity


def fits(similarity: Tensor) -> bool:
    """Whether the kernel can take these rows."""
    return similarity.dtype == torch.float32 and similarity.shape[2] <= LONGEST_ROW


def _launch(similarity: Tensor, losses: Tensor, first: int, signed: bool, gradient: bool) -> None:
    images, rows, columns = similarity.shape
    block = triton.next_power_of_2(columns)
    row_kernel[(images * rows,)](
        similarity, losses, columns, rows, first,
        SIGNED=signed, GRADIENT=gradient, BLOCK=block, num_warps=max(1, min(8, block // 256)),
    )  # fmt: skip
