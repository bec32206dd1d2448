"""Bilinear upsampling as two small matrices, the argmax of upsampled logits, and the precision of all losses.

The weights are those of `F.interpolate(align_corners=False)`. A row of a matrix has at most two entries, those of
the source's neighbours. Written as matrix products, both the interpolation and its gradient are deterministic on
every device. Losses are computed in float32 at least, whatever precision the model runs in.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from tiss.models import Resolution

CHUNK_ELEMENTS = 1 << 20  # of a chunk's logits: 4 MiB in float32, about a core's cache
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)  # what the Triton kernels read


def full_precision(tensor: Tensor) -> Tensor:
    """Half precision to float32; float32 and float64 as they are."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def without_autocast(tensor: Tensor) -> torch.autocast:
    """A context in which matrix products keep the precision of their operands."""
    return torch.autocast(tensor.device.type, enabled=False)


@contextmanager
def exact_products() -> Iterator[None]:
    """Float32 matrix products in float32, also where a GPU may otherwise round their operands to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether triton is installed; it is imported only when a kernel is launched."""
    return find_spec("triton") is not None


@lru_cache(maxsize=64)
def interpolation_matrix(
    source: int, target: int, size: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The first `size` of `target` output rows as weights of `source` input rows, size × source.

    >>> interpolation_matrix(2, 4, 4, torch.float32, torch.device("cpu")).tolist()
    [[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]
    """
    matrix, row = torch.zeros(size, source, dtype=torch.float64), torch.arange(size)
    # half-pixel centres, exactly, in units of 1 / whole; beyond the outer centres the border value holds
    whole = 2 * target
    position = ((2 * row + 1) * source - target).clamp(0, (source - 1) * whole)
    lower, weight = position // whole, (position % whole).double() / whole
    matrix[row, lower] += 1 - weight
    matrix[row, (lower + 1).clamp(max=source - 1)] += weight
    return matrix.to(device=device, dtype=dtype)


class Rows:
    """Upsamples logits N × C × h × w a few rows of pixels at a time, and brings gradients back.

    `parts` are the slices of rows, each with at most `budget` logits where that is possible.
    """

    def __init__(self, logits: Tensor, to: Resolution, budget: int) -> None:
        self.rows, self.columns = (
            interpolation_matrix(
                logits.shape[axis], to.padded[axis], to.size[axis], logits.dtype, logits.device
            )
            for axis in (-2, -1)
        )
        self.images, (height, self.width) = len(logits), to.size
        step = max(1, budget // max(1, self.images * logits.shape[1] * self.width))
        self.parts = [slice(start, min(start + step, height)) for start in range(0, height, step)]

    def widen(self, logits: Tensor) -> Tensor:
        """N × C × h × w to h × (N·C·W): columns upsampled, rows first, so that they become one product too."""
        return (logits.permute(2, 0, 1, 3) @ self.columns.t()).flatten(1)

    def pixels(self, wide: Tensor, part: slice) -> Tensor:
        """Some rows of what `widen` made, R × N × C × W."""
        channels = wide.shape[1] // (self.images * self.width)
        return (self.rows[part] @ wide).view(part.stop - part.start, self.images, channels, self.width)

    def add(self, total: Tensor, part: slice, gradient: Tensor, scale: float) -> None:
        """Adds the gradient of some rows to that of what `widen` made."""
        total.addmm_(self.rows[part].t(), gradient.view(len(gradient), -1), alpha=scale)

    def narrow(self, total: Tensor) -> Tensor:
        """The gradient of what `widen` made as that of the logits, N × C × h × w."""
        small = total.view(len(total), self.images, -1, self.width) @ self.columns
        return small.permute(1, 2, 0, 3)


def upsampled_argmax(logits: Tensor, resolution: Resolution) -> Tensor:
    """argmax over channels of the upsampled logits; among equals the lowest channel.

    `logits` N × C × h × w; the result is N × H × W, uint8 up to 256 channels and int64 beyond.
    `resolution.fused` "off" upsamples everything first.

    >>> logits = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]])
    >>> upsampled_argmax(logits, Resolution.of(1, 4)).tolist()
    [[[0, 0, 1, 1]]]
    """
    logits = logits.detach()
    kind = torch.uint8 if logits.shape[1] <= 256 else torch.int64
    if resolution.fused == "off" or resolution.aligned or logits.shape[-2:] == resolution.padded:
        return resolution.upsample(full_precision(logits)).argmax(1).to(kind)
    if logits.is_cuda and has_triton() and logits.dtype in KERNEL_TYPES:
        from tiss.losses.triton_pixels import argmax

        return argmax(logits, resolution, kind)
    result = torch.empty(len(logits), *resolution.size, dtype=kind, device=logits.device)
    with without_autocast(logits):
        small = full_precision(logits)
        rows = Rows(small, resolution, CHUNK_ELEMENTS)
        wide = rows.widen(small)
        for part in rows.parts:
            result[:, part] = rows.pixels(wide, part).argmax(2).transpose(0, 1)
    return result
