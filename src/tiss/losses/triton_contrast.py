"""Rows of a similarity matrix turned into their loss and their gradient in one pass, by a Triton kernel."""

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
    """Row i's cross-entropy against column first + i and, in place, its gradient by the row."""
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
    positive = tl.sum(tl.where(own, strength, 0.0), 0)
    tl.store(losses + program, largest + tl.log(total) - positive)
    if GRADIENT:
        weight = weight / total - tl.where(own, 1.0, 0.0)
        if not SIGNED:
            weight = tl.where(value > 0, weight, tl.where(value < 0, -weight, 0.0))
        tl.store(similarity, weight, mask=exists)


def reduce_rows(similarity: Tensor, first: int, signed: bool, with_gradient: bool) -> tuple[Tensor, Tensor]:
    """As `tiss.losses.contrast.reduce_rows`; the gradient takes the place of the similarities."""
    images, rows, columns = similarity.shape
    losses = similarity.new_empty(images, rows)
    block = triton.next_power_of_2(columns)
    row_kernel[(images * rows,)](
        similarity, losses, columns, rows, first,
        SIGNED=signed, GRADIENT=with_gradient, BLOCK=block, num_warps=max(1, min(8, block // 256)),
    )  # fmt: skip
    return losses, similarity


def fits(similarity: Tensor) -> bool:
    """Whether the kernel can take these rows."""
    return similarity.dtype == torch.float32 and similarity.shape[2] <= LONGEST_ROW
