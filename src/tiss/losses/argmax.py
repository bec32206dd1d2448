"""The class of every pixel from small logits, without the logits of all pixels and classes."""

from __future__ import annotations

import torch
from torch import Tensor

from tiss.losses.backends import KERNEL_TYPES, has_triton
from tiss.losses.chunked import CHUNK_ELEMENTS
from tiss.losses.precision import full_precision, without_autocast
from tiss.losses.resampling import row_and_column_matrices, widen
from tiss.models.contract import Resolution


def upsampled_argmax(logits: Tensor, resolution: Resolution) -> Tensor:
    """argmax over channels of the upsampled logits; among equals the lowest channel.

    `logits` N × C × h × w; the result is N × H × W, uint8 up to 256 channels and int64 beyond.
    `resolution.fused` "off" upsamples everything first.

    >>> import torch
    >>> logits = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]])
    >>> upsampled_argmax(logits, Resolution.of(1, 4)).tolist()
    [[[0, 0, 1, 1]]]
    """
    logits = logits.detach()
    kind = torch.uint8 if logits.shape[1] <= 256 else torch.int64
    if resolution.fused == "off" or logits.shape[-2:] == resolution.padded:
        return resolution.upsample(full_precision(logits)).argmax(1).to(kind)
    if logits.is_cuda and has_triton() and logits.dtype in KERNEL_TYPES:
        from tiss.losses.triton_backend import argmax

        return argmax(logits, resolution, kind)
    with without_autocast(logits):
        return _chunked(full_precision(logits), resolution, kind)


def _chunked(logits: Tensor, resolution: Resolution, kind: torch.dtype) -> Tensor:
    """A few rows at a time."""
    images, channels = logits.shape[:2]
    height, width = resolution.size
    rows, columns = row_and_column_matrices(logits, resolution)
    wide = widen(logits, columns)
    step = max(1, CHUNK_ELEMENTS // (images * channels * width))
    result = torch.empty(images, height, width, dtype=kind, device=logits.device)
    for start in range(0, height, step):
        part = (rows[start : start + step] @ wide).view(-1, images, channels, width).argmax(2)
        result[:, start : start + step] = part.transpose(0, 1)
    return result
