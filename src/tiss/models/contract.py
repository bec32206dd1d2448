"""The output contract: what every model returns.

`logits` stay at the decoder's own resolution. Only losses (inside) and prediction bring them to pixels, as
`Resolution` says: bilinear (align_corners=False) to the padded size, then cropped to the input's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Fused = Literal["auto", "on", "off"]
Need = int | str  # a block's index (negative from the end), "decoder", or a name that the encoder declares


@dataclass(frozen=True)
class Resolution:
    """How logits of a decoder become logits of pixels."""

    size: tuple[int, int]  # the input's height and width
    padded: tuple[int, int]  # after padding to a multiple of the patch, at the right and the bottom
    fused: Fused = "auto"  # whether losses may use the kernel that never holds full-resolution logits

    @classmethod
    def of(cls, height: int, width: int) -> Resolution:
        return cls((height, width), (height, width))

    def upsample(self, logits: Tensor) -> Tensor:
        """Logits N × C × h × w to N × C × H × W."""
        if tuple(logits.shape[-2:]) != self.padded:
            logits = F.interpolate(logits.contiguous(), self.padded, mode="bilinear", align_corners=False)
        return logits[..., : self.size[0], : self.size[1]]


@dataclass
class Output:
    """What a model's forward pass returns."""

    logits: Tensor  # N × C × h × w, at the decoder's resolution
    features: tuple[Tensor, ...]  # N × D × h × w, one map per need that was asked for, in that order
    resolution: Resolution

    def pixels(self) -> Tensor:
        """Logits at the input's resolution: for prediction only."""
        return self.resolution.upsample(self.logits)

    def with_fused(self, fused: Fused) -> Output:
        return replace(self, resolution=replace(self.resolution, fused=fused))


def tokens(feature_map: Tensor) -> Tensor:
    """A feature map N × D × h × w as patch tokens N × n × D (a view where the map came from tokens)."""
    return torch.flatten(feature_map, 2).transpose(1, 2)
