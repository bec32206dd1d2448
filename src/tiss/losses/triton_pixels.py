"""The grouped cross-entropy and the argmax as Triton kernels: pixels exist only inside a program.

Between the centres of four neighbouring tokens lies a *cell*: all its pixels interpolate the same four
tokens. A program takes one cell (or a part of a large one), loads the tokens of a few classes at a time and
keeps classes × columns × rows of logits in registers, one warp per program, so that sums over classes need
no exchange between threads. With logits multiplied by log2(e), exp and log become the faster base-2 ones.

Cells are counted 0..h along an axis of h tokens: cell c lies between tokens c − 1 and c; in the outer ones
all weight is on the token that exists. So token i is the upper corner of cell i and the lower one of cell i
+ 1, and its gradient is gathered from these, in a fixed order, without atomics.

Old channels are [0, split), the others new, as in `tiss.losses.pixel`. Logits lie in memory with
the channels last, N × h × w × C, so that the classes of a block come from one line.
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

from tiss.losses.chunked import Pair, Task
from tiss.models import Resolution

LARGEST_SIDE = 16  # of a tile, in pixels; larger cells are cut into parts
ELEMENTS = 1024  # logits that a program's single warp holds at a time

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
FAR = tl.constexpr(-1.0e30)  # a logit that takes no part; finite, so that no difference of two is undefined
IGNORE = tl.constexpr(255)

# Sizes stay arguments: a head that grows or another image size must not compile the kernels again.
IMAGE = ["height", "width", "padded_height", "padded_width", "size_height", "size_width"]
VARYING = ["channels", "split", *IMAGE]


class Tiling:
    """How the pixels of logits N × h × w × C are divided among programs."""

    def __init__(self, student: Tensor, to: Resolution) -> None:
        images, height, width, _ = student.shape
        self.tokens = images * height * width
        self.sizes = (height, width, *to.padded, *to.size)
        cells = [-(-whole // part) for whole, part in zip(to.padded, (height, width), strict=True)]
        tiles = [-(-cell // LARGEST_SIDE) for cell in cells]  # in a cell, along each axis
        sides = [1 << (min(cell, LARGEST_SIDE) - 1).bit_length() for cell in cells]  # pixels of a tile
        self.programs = images * (height + 1) * tiles[0] * (width + 1) * tiles[1]
        self.pixels = sides[0] * sides[1]
        self.parts = {"PARTS_Y": tiles[0], "PARTS_X": tiles[1], "num_warps": 1}
        classes = min(32, max(4, ELEMENTS // self.pixels))
        self.constants = self.parts | {"ROWS": sides[0], "COLUMNS": sides[1], "CLASSES": classes}


def fused_cross_entropy(task: Task) -> Pair:
    """Hard and soft loss of `task` on a GPU, never holding logits of pixels."""
    pair: Pair = _Fused.apply(task.logits, task)
    return pair


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, task: Task) -> Pair:
        student = _channels_last(logits.detach())
        # What is not asked for is never read: the logits take its place.
        teacher = student if task.teacher is None else _channels_last(task.teacher.detach())
        labels = student if task.labels is None else task.labels.contiguous()
        weights = student if task.image_weights is None else task.image_weights.detach().float().contiguous()
        ctx.tiling = tiling = Tiling(student, task.to)
        scale = 1 / (len(student) * task.to.size[0] * task.to.size[1])
        ctx.sizes = (scale, student.shape[3], task.split, *tiling.sizes)
        ctx.constants = tiling.constants | {
            "HARD": task.labels is not None,
            "SOFT": task.teacher is not None,
            "WEIGHTED": task.image_weights is not None,
        }
        statistics = student.new_empty(tiling.programs, 3, tiling.pixels, dtype=torch.float32)
        losses = student.new_zeros(2, tiling.programs, dtype=torch.float32)
        forward_kernel[(tiling.programs,)](
            student, teacher, labels, weights, statistics, losses, *ctx.sizes, **ctx.constants
        )
        ctx.save_for_backward(student, teacher, labels, weights, statistics)
        return losses[0].sum(), losses[1].sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, hard: Tensor, soft: Tensor) -> tuple[Tensor, None]:
        """The gradient N × C × h × w, in memory with the channels last."""
        student, statistics = ctx.saved_tensors[0], ctx.saved_tensors[4]
        tiling, upstream = ctx.tiling, torch.stack([hard, soft])
        partial = statistics.new_empty(tiling.programs, 4, student.shape[3])
        backward_kernel[(tiling.programs,)](
            *ctx.saved_tensors, upstream, partial, *ctx.sizes, **ctx.constants
        )
        gradient = torch.empty_like(student)
        gather_kernel[(tiling.tokens,)](
            partial, gradient, student.shape[3], *tiling.sizes[:2], CLASSES=64, **tiling.parts
        )
        return gradient.permute(0, 3, 1, 2), None


def argmax(logits: Tensor, resolution: Resolution, kind: torch.dtype) -> Tensor:
    """Channel of the largest upsampled logit, N × H × W."""
    student = _channels_last(logits)
    tiling = Tiling(student, resolution)
    result = torch.empty(len(logits), *resolution.size, dtype=kind, device=logits.device)
    argmax_kernel[(tiling.programs,)](student, result, student.shape[3], *tiling.sizes, **tiling.constants)
    return result


def _channels_last(logits: Tensor) -> Tensor:
    """N × C × h × w to N × h × w × C, without a copy where a linear layer over tokens made it."""
    return logits.permute(0, 2, 3, 1).contiguous()


@triton.jit
def _axis(tile, source, padded, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Pixels of a tile along an axis, which of them exist, their weight on the second token, both tokens."""
    cell = tile // PARTS
    start = (tl.maximum((2 * cell - 1) * padded - source, 0) + 2 * source - 1) // (2 * source)
    stop = (tl.maximum((2 * cell + 1) * padded - source, 0) + 2 * source - 1) // (2 * source)
    pixel = start + (tile % PARTS) * BLOCK + tl.arange(0, BLOCK)
    exists = pixel < tl.minimum(stop, size)
    weight = ((2 * pixel + 1) * source - (2 * cell - 1) * padded).to(tl.float32) / (2 * padded).to(tl.float32)
    weight = tl.where(cell == 0, 1.0, tl.where(cell == source, 0.0, weight))
    return pixel, exists, weight, tl.maximum(cell - 1, 0), tl.minimum(cell, source - 1)


@triton.jit
def _tile(
    program, height, width, padded_height, padded_width, size_height, size_width,
    PARTS_Y: tl.constexpr, PARTS_X: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A program's image, rows, columns, which pixels exist, their weights, and the numbers of the cell's tokens."""
    tiles_y, tiles_x = (height + 1) * PARTS_Y, (width + 1) * PARTS_X
    tile_x, rest = program % tiles_x, program // tiles_x
    tile_y, image = rest % tiles_y, rest // tiles_y
    y, y_exists, down, top, bottom = _axis(tile_y, height, padded_height, size_height, PARTS_Y, ROWS)
    x, x_exists, across, left, right = _axis(tile_x, width, padded_width, size_width, PARTS_X, COLUMNS)
    upper, lower = (image * height + top) * width, (image * height + bottom) * width
    tokens = (upper + left, upper + right, lower + left, lower + right)
    return image, y, x, x_exists[:, None] & y_exists[None, :], down, across, tokens


@triton.jit
def _corners(pointer, channels, tokens):
    """Pointers to channel 0 of a cell's four tokens."""
    return (
        pointer + tokens[0].to(tl.int64) * channels,
        pointer + tokens[1].to(tl.int64) * channels,
        pointer + tokens[2].to(tl.int64) * channels,
        pointer + tokens[3].to(tl.int64) * channels,
    )


@triton.jit
def _block(corners, classes, stop, down, across):
    """Logits in base 2 of some classes, CLASSES × COLUMNS × ROWS; those from `stop` on are far below all."""
    keep = classes < stop
    top_left = tl.load(corners[0] + classes, mask=keep, other=FAR).to(tl.float32) * LOG2E
    top_right = tl.load(corners[1] + classes, mask=keep, other=FAR).to(tl.float32) * LOG2E
    bottom_left = tl.load(corners[2] + classes, mask=keep, other=FAR).to(tl.float32) * LOG2E
    bottom_right = tl.load(corners[3] + classes, mask=keep, other=FAR).to(tl.float32) * LOG2E
    left = top_left[:, None] + down[None, :] * (bottom_left - top_left)[:, None]
    right = top_right[:, None] + down[None, :] * (bottom_right - top_right)[:, None]
    return left[:, None, :] + across[None, :, None] * (right - left)[:, None, :]


@triton.jit
def _chosen(corners, channel, keep, down, across):
    """Logits in base 2, COLUMNS × ROWS, of the channel that each pixel names."""
    top_left = tl.load(corners[0] + channel, mask=keep, other=0.0).to(tl.float32)
    top_right = tl.load(corners[1] + channel, mask=keep, other=0.0).to(tl.float32)
    bottom_left = tl.load(corners[2] + channel, mask=keep, other=0.0).to(tl.float32)
    bottom_right = tl.load(corners[3] + channel, mask=keep, other=0.0).to(tl.float32)
    left = top_left + down[None, :] * (bottom_left - top_left)
    right = top_right + down[None, :] * (bottom_right - top_right)
    return (left + across[:, None] * (right - left)) * LOG2E


@triton.jit
def _first(corners, down, across):
    """Logits in base 2, COLUMNS × ROWS, of channel 0."""
    top_left, top_right = tl.load(corners[0]).to(tl.float32), tl.load(corners[1]).to(tl.float32)
    bottom_left, bottom_right = tl.load(corners[2]).to(tl.float32), tl.load(corners[3]).to(tl.float32)
    left = top_left + down * (bottom_left - top_left)
    right = top_right + down * (bottom_right - top_right)
    return (left[None, :] + across[:, None] * (right - left)[None, :]) * LOG2E


@triton.jit
def _log_add(a, b):
    """log2(2^a + 2^b)."""
    largest = tl.maximum(a, b)
    return largest + tl.log2(tl.exp2(a - largest) + tl.exp2(b - largest))


@triton.jit
def _log_sum(corners, start, stop, down, across, CLASSES: tl.constexpr):
    """Log-sum-exp in base 2 over channels [start, stop), COLUMNS × ROWS; far below all if there are none."""
    total = across[:, None] * 0.0 + down[None, :] * 0.0
    largest = total + FAR
    for first in range(start, stop, CLASSES):
        logits = _block(corners, first + tl.arange(0, CLASSES), stop, down, across)
        grown = tl.maximum(largest, tl.max(logits, 0))
        total = total * tl.exp2(largest - grown) + tl.sum(tl.exp2(logits - grown[None, :, :]), 0)
        largest = grown
    return largest + tl.log2(tl.maximum(total, 1.0e-37))


@triton.jit(do_not_specialize=VARYING)
def forward_kernel(
    student, teacher, labels, image_weights, statistics, losses, scale,
    channels, split, height, width, padded_height, padded_width, size_height, size_width,
    HARD: tl.constexpr, SOFT: tl.constexpr, WEIGHTED: tl.constexpr,
    PARTS_Y: tl.constexpr, PARTS_X: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """Both losses of a tile's pixels, and the log-sums of each pixel, which the backward kernel wants."""
    program = tl.program_id(0)
    image, y, x, exists, down, across, tokens = _tile(
        program, height, width, padded_height, padded_width, size_height, size_width,
        PARTS_Y, PARTS_X, ROWS, COLUMNS,
    )  # fmt: skip
    corners = _corners(student, channels, tokens)
    place = tl.arange(0, COLUMNS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    statistics += program.to(tl.int64) * (3 * ROWS * COLUMNS) + place

    if SOFT:
        guides = _corners(teacher, split, tokens)
        product = tl.zeros((COLUMNS, ROWS), tl.float32)
        old_largest, old_total = product + FAR, product
        guide_largest, guide_total = product + FAR, product
        for first in range(0, split, CLASSES):
            classes = first + tl.arange(0, CLASSES)
            logits = _block(corners, classes, split, down, across)
            grown = tl.maximum(old_largest, tl.max(logits, 0))
            old_total = old_total * tl.exp2(old_largest - grown) + tl.sum(
                tl.exp2(logits - grown[None, :, :]), 0
            )
            old_largest = grown
            guide = _block(guides, classes, split, down, across)
            grown = tl.maximum(guide_largest, tl.max(guide, 0))
            shrink = tl.exp2(guide_largest - grown)
            guide = tl.exp2(guide - grown[None, :, :])
            guide_total = guide_total * shrink + tl.sum(guide, 0)
            product = product * shrink + tl.sum(guide * logits, 0)
            guide_largest = grown
        old = old_largest + tl.log2(old_total)
        guide_all = guide_largest + tl.log2(guide_total)
        tl.store(statistics + 2 * ROWS * COLUMNS, guide_all)
    else:
        old = _log_sum(corners, 0, split, down, across, CLASSES)
    new = _log_sum(corners, split, channels, down, across, CLASSES)
    tl.store(statistics, old)
    tl.store(statistics + ROWS * COLUMNS, new)
    everything = _log_add(old, new)

    if HARD:
        place = image.to(tl.int64) * size_height * size_width + y[None, :] * size_width + x[:, None]
        label = tl.load(labels + place, mask=exists, other=IGNORE).to(tl.int32)
        counted = exists & (label != IGNORE)
        is_new = counted & (label >= split)
        chosen = tl.where(is_new, _chosen(corners, label, is_new, down, across), old)
        hard = tl.sum(tl.where(counted, everything - chosen, 0.0)) * (scale * LN2)
        if WEIGHTED:
            hard *= tl.load(image_weights + image)
        tl.store(losses + program, hard)
    if SOFT:
        first_logit = _first(corners, down, across)
        share = tl.exp2(_first(guides, down, across) - guide_all)
        expected = product / guide_total + share * (_log_add(first_logit, new) - first_logit)
        soft = tl.sum(tl.where(exists, everything - expected, 0.0)) * (scale * LN2)
        tl.store(losses + tl.num_programs(0) + program, soft)


@triton.jit
def _store_corners(partial, channels, classes, stop, gradient, down, across):
    """Adds up CLASSES × COLUMNS × ROWS into the four tokens of the cell."""
    keep = classes < stop
    both = tl.sum(gradient, 1)
    right = tl.sum(gradient * across[None, :, None], 1)
    left = both - right
    bottom_left = tl.sum(left * down[None, :], 1)
    bottom_right = tl.sum(right * down[None, :], 1)
    tl.store(partial + classes, tl.sum(left, 1) - bottom_left, mask=keep)
    tl.store(partial + channels + classes, tl.sum(right, 1) - bottom_right, mask=keep)
    tl.store(partial + 2 * channels + classes, bottom_left, mask=keep)
    tl.store(partial + 3 * channels + classes, bottom_right, mask=keep)


@triton.jit(do_not_specialize=VARYING)
def backward_kernel(
    student, teacher, labels, image_weights, statistics, upstream, partial, scale,
    channels, split, height, width, padded_height, padded_width, size_height, size_width,
    HARD: tl.constexpr, SOFT: tl.constexpr, WEIGHTED: tl.constexpr,
    PARTS_Y: tl.constexpr, PARTS_X: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """What a tile's pixels give to the gradient of its cell's four tokens, 4 × channels for each program."""
    program = tl.program_id(0)
    image, y, x, exists, down, across, tokens = _tile(
        program, height, width, padded_height, padded_width, size_height, size_width,
        PARTS_Y, PARTS_X, ROWS, COLUMNS,
    )  # fmt: skip
    corners = _corners(student, channels, tokens)
    place = tl.arange(0, COLUMNS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    statistics += program.to(tl.int64) * (3 * ROWS * COLUMNS) + place
    partial += program.to(tl.int64) * 4 * channels
    old = tl.load(statistics)
    new = tl.load(statistics + ROWS * COLUMNS)
    everything = _log_add(old, new)

    # A softmax within a range adds up to 1, so a range's gradient is that softmax times one number per pixel.
    hard = tl.zeros((COLUMNS, ROWS), tl.float32)
    soft = hard
    label = tl.full((COLUMNS, ROWS), IGNORE, tl.int32)
    if HARD:
        place = image.to(tl.int64) * size_height * size_width + y[None, :] * size_width + x[:, None]
        label = tl.load(labels + place, mask=exists, other=IGNORE).to(tl.int32)
        strength = tl.load(upstream).to(tl.float32) * scale
        if WEIGHTED:
            strength *= tl.load(image_weights + image)
        hard = tl.where(label != IGNORE, strength, 0.0)
    if SOFT:
        soft = tl.where(exists, tl.load(upstream + 1).to(tl.float32) * scale, 0.0)
    on_old = (hard + soft) * tl.exp2(old - everything) - tl.where(label < split, hard, 0.0)
    on_new = (hard + soft) * tl.exp2(new - everything)
    if SOFT:
        guides = _corners(teacher, split, tokens)
        guide_all = tl.load(statistics + 2 * ROWS * COLUMNS)
        share = soft * tl.exp2(_first(guides, down, across) - guide_all)
        first_logit = _first(corners, down, across)
        background = _log_add(first_logit, new)
        on_new -= share * tl.exp2(new - background)
        # Channel 0 keeps of the teacher's background only its own part; the rest is on the new channels.
        on_first = share * (1.0 - tl.exp2(first_logit - background))

    for first in range(0, split, CLASSES):
        classes = first + tl.arange(0, CLASSES)
        logits = _block(corners, classes, split, down, across)
        gradient = on_old[None, :, :] * tl.exp2(logits - old[None, :, :])
        if SOFT:
            guide = _block(guides, classes, split, down, across)
            gradient -= soft[None, :, :] * tl.exp2(guide - guide_all[None, :, :])
            gradient += tl.where(classes == 0, 1.0, 0.0)[:, None, None] * on_first[None, :, :]
        _store_corners(partial, channels, classes, split, gradient, down, across)
    for first in range(split, channels, CLASSES):
        classes = first + tl.arange(0, CLASSES)
        logits = _block(corners, classes, channels, down, across)
        gradient = on_new[None, :, :] * tl.exp2(logits - new[None, :, :])
        if HARD:
            gradient -= tl.where(label[None, :, :] == classes[:, None, None], hard[None, :, :], 0.0)
        _store_corners(partial, channels, classes, channels, gradient, down, across)


@triton.jit(do_not_specialize=["channels", "height", "width"])
def gather_kernel(
    partial, gradient, channels, height, width,
    PARTS_Y: tl.constexpr, PARTS_X: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """The gradient of one token: what the four cells around it give to it, in a fixed order."""
    program = tl.program_id(0).to(tl.int64)
    token_x, rest = program % width, program // width
    token_y, image = rest % height, rest // height
    tiles_y, tiles_x = (height + 1) * PARTS_Y, (width + 1) * PARTS_X
    for first in range(0, channels, CLASSES):
        classes = first + tl.arange(0, CLASSES)
        keep = classes < channels
        value = tl.zeros((CLASSES,), tl.float32)
        for side_y in tl.static_range(2):
            for part_y in tl.static_range(PARTS_Y):
                tile_y = (token_y + 1 - side_y) * PARTS_Y + part_y
                for side_x in tl.static_range(2):
                    for part_x in tl.static_range(PARTS_X):
                        tile_x = (token_x + 1 - side_x) * PARTS_X + part_x
                        tile = (image * tiles_y + tile_y) * tiles_x + tile_x
                        corner = tile * 4 + side_y * 2 + side_x
                        value += tl.load(partial + corner * channels + classes, mask=keep, other=0.0)
        tl.store(gradient + program * channels + classes, value.to(gradient.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["channels", *IMAGE])
def argmax_kernel(
    student, result,
    channels, height, width, padded_height, padded_width, size_height, size_width,
    PARTS_Y: tl.constexpr, PARTS_X: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """The channel of the largest logit of every pixel of a tile; among equals the lowest."""
    program = tl.program_id(0)
    image, y, x, exists, down, across, tokens = _tile(
        program, height, width, padded_height, padded_width, size_height, size_width,
        PARTS_Y, PARTS_X, ROWS, COLUMNS,
    )  # fmt: skip
    corners = _corners(student, channels, tokens)
    largest = tl.full((COLUMNS, ROWS), FAR, tl.float32) * 2
    best = tl.zeros((COLUMNS, ROWS), tl.int32)
    for first in range(0, channels, CLASSES):
        logits = _block(corners, first + tl.arange(0, CLASSES), channels, down, across)
        value, index = tl.max(logits, 0, return_indices=True)
        better = value > largest
        largest = tl.where(better, value, largest)
        best = tl.where(better, first + index, best)
    place = image.to(tl.int64) * size_height * size_width + y[None, :] * size_width + x[:, None]
    tl.store(result + place, best.to(result.dtype.element_ty), mask=exists)
