"""SegFormer's decoder: every map projected, brought to the finest resolution, joined and fused."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiss.models.decoder import DECODERS, Decoder
from tiss.models.deeplab import ConvNormAct
from tiss.models.encoder import Encoder


@DECODERS.register("mlp")
class MlpDecoder(Decoder):
    """One linear layer a map, bilinear resizing, one fusing layer."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.channels, self.stride = encoder.decoder_channels, encoder.pyramid[0].stride
        self.projections = nn.ModuleList(
            nn.Conv2d(level.channels, self.channels, 1) for level in encoder.pyramid
        )
        self.fuse = ConvNormAct(len(encoder.pyramid) * self.channels, self.channels, 1)

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        size = pyramid[0].shape[-2:]
        projected = [layer(maps) for layer, maps in zip(self.projections, pyramid, strict=True)]
        resized = [
            maps
            if maps.shape[-2:] == size
            else F.interpolate(maps, size, mode="bilinear", align_corners=False)
            for maps in projected
        ]
        return self.fuse(torch.cat(resized, dim=1))
