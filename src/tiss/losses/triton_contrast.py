"""The contrast on a GPU: unit vectors, products on the matrix units, and kernels for all that lies between.

Unit vectors and the gradient's rows are held in float16 where the caller lets float32 products use TF32: both have
the same ten bits, and float16 is read and multiplied in half the time. Sums are float32 throughout.
"""

# Triton compiles the kernels: constants are upper-case arguments, and types follow from the call.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from tiss.losses.patches import chunks

LONGEST_ROW = 8192  # of similarities, or of a token, that one program takes in whole
KINDS = (torch.float32, torch.bfloat16, torch.float16)


def fits(tokens: Tensor, reference: Tensor) -> bool:
    """Whether the kernels can take these tokens."""
    return max(tokens.shape[1:]) <= LONGEST_ROW and tokens.dtype in KINDS and reference.dtype in KINDS


def contrast(tokens: Tensor, reference: Tensor, signed: bool, tau: float) -> Tensor:
    result: Tensor = _Contrast.apply(tokens, reference, signed, tau)
    return result


class _Contrast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, reference: Tensor, signed: bool, tau: float) -> Tensor:
        left, left_scale = unit(tokens)
        right, right_scale = unit(reference)
        with_left, with_right = ctx.needs_input_grad[:2]
        to_left = left.new_empty(left.shape, dtype=torch.float32) if with_left else None
        to_right = left.new_zeros(right.shape, dtype=torch.float32) if with_right else None
        losses = left.new_empty(left.shape[:2], dtype=torch.float32)
        for images, rows in chunks(left):
            similarity = product(left[images, rows], right[images].mT)
            losses[images, rows], gradient = reduce_rows(
                similarity, rows.start, signed, 1 / tau, left.dtype if with_left or with_right else None
            )
            if to_left is not None:
                to_left[images, rows] = product(gradient, right[images])
            if to_right is not None:
                to_right[images] += product(gradient.mT, left[images, rows])
        ctx.save_for_backward(left, left_scale, to_left, right, right_scale, to_right)
        ctx.kinds, ctx.scale = (tokens.dtype, reference.dtype), 1 / (tau * losses.numel())
        return losses.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        found: list[Tensor | None] = []
        for kind, side in zip(ctx.kinds, (ctx.saved_tensors[:3], ctx.saved_tensors[3:]), strict=True):
            units, scales, gradient = side
            found.append(None if gradient is None else torch.empty_like(units, dtype=kind))
            if gradient is not None:
                columns = units.shape[2]
                project_kernel[(scales.numel(),)](
                    gradient, units, scales, upstream * ctx.scale, found[-1], columns,
                    BLOCK=triton.next_power_of_2(columns), num_warps=1,
                )  # fmt: skip
        return found[0], found[1], None, None


def product(left: Tensor, right: Tensor) -> Tensor:
    """Batched matrix product with sums and result in float32."""
    return left @ right if left.dtype == torch.float32 else torch.bmm(left, right, out_dtype=torch.float32)


def unit(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens N × n × D of any layout as unit vectors, and what each was multiplied by, N × n."""
    kind = torch.float32 if torch.get_float32_matmul_precision() == "highest" else torch.float16
    images, rows, columns = tokens.shape
    units = torch.empty(tokens.shape, dtype=kind, device=tokens.device)
    scales = torch.empty(images, rows, dtype=torch.float32, device=tokens.device)
    unit_kernel[(images * rows,)](
        tokens, units, scales, rows, columns, *tokens.stride(), BLOCK=triton.next_power_of_2(columns), num_warps=1
    )  # fmt: skip
    return units, scales


def reduce_rows(
    similarity: Tensor, first: int, signed: bool, factor: float, kind: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of row i of images × rows × n, times `factor`, against column first + i.

    The second result is its gradient by the scaled row, as `kind` (None: it means nothing).
    """
    images, rows, columns = similarity.shape
    losses = similarity.new_empty(images, rows)
    gradient = (
        similarity if kind in (None, similarity.dtype) else similarity.new_empty(similarity.shape, dtype=kind)
    )
    block = triton.next_power_of_2(columns)
    row_kernel[(images * rows,)](
        similarity, losses, gradient, columns, rows, first, factor,
        SIGNED=signed, GRADIENT=kind is not None, BLOCK=block, num_warps=max(1, min(8, block // 256)),
    )  # fmt: skip
    return losses, gradient


@triton.jit(do_not_specialize=["rows", "image_stride", "row_stride"])
def unit_kernel(
    tokens, units, scales, rows, columns, image_stride, row_stride, column_stride, BLOCK: tl.constexpr
):
    """One token divided by its length."""
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    exists = column < columns
    tokens += (program // rows).to(tl.int64) * image_stride + (program % rows).to(tl.int64) * row_stride
    value = tl.load(tokens + column * column_stride, mask=exists, other=0.0).to(tl.float32)
    scale = 1 / tl.maximum(tl.sqrt(tl.sum(value * value, 0)), 1.0e-12)
    tl.store(units + program.to(tl.int64) * columns + column, value * scale, mask=exists)
    tl.store(scales + program, scale)


@triton.jit(do_not_specialize=["columns", "rows", "first"])
def row_kernel(
    similarity, losses, gradient, columns, rows, first, factor,
    SIGNED: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Row i's cross-entropy against column first + i, and its gradient by the row."""
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    exists = column < columns
    own = column == first + program % rows
    place = program.to(tl.int64) * columns + column
    value = tl.load(similarity + place, mask=exists, other=0.0)
    strength = (value if SIGNED else tl.abs(value)) * factor
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
        tl.store(gradient + place, weight, mask=exists)


@triton.jit
def project_kernel(gradient, units, scales, upstream, found, columns, BLOCK: tl.constexpr):
    """The gradient of one token from that of its unit vector: without its part along the token."""
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    exists = column < columns
    place = program.to(tl.int64) * columns + column
    slope = tl.load(gradient + place, mask=exists, other=0.0)
    unit = tl.load(units + place, mask=exists, other=0.0).to(tl.float32)
    along = tl.sum(slope * unit, 0)
    scale = tl.load(scales + program) * tl.load(upstream)
    tl.store(found + place, (slope - along * unit) * scale, mask=exists)
