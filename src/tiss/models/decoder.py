"""Decoders: the second slot, from an encoder's pyramid to the one map that the head reads."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiss.errors import TissError
from tiss.models.encoder import Encoder
from tiss.registry import Registry

RATES = {16: (6, 12, 18), 8: (12, 24, 36)}  # of ASPP, by the stride of the map; the same reach in pixels


class Decoder(nn.Module):
    """Base of all decoders; a new one sets these attributes and writes `forward`."""

    channels: int  # of the map that it gives
    stride: int  # input pixels per pixel of the map
    default_head: str = "linear"

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        """The encoder's maps, finest first, to N × D × h × w."""
        raise NotImplementedError


DECODERS: Registry[Callable[[Encoder], Decoder]] = Registry("decoder", "decoders", ("tiss.models.mask",))


@DECODERS.register("linear")
class LinearDecoder(Decoder):
    """Hands on the encoder's last map: the paper's linear decoder is the head's one layer."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.channels = encoder.pyramid[-1].channels
        self.stride = encoder.pyramid[-1].stride

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        return pyramid[-1]


class ConvNormAct(nn.Sequential):
    """Convolution, batch norm, ReLU."""

    def __init__(self, channels: int, out: int, kernel: int, dilation: int = 1) -> None:
        padding = dilation * (kernel // 2)
        super().__init__(
            nn.Conv2d(channels, out, kernel, padding=padding, dilation=dilation, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
        )


class AtrousPyramid(nn.Module):
    """ASPP: a 1×1 convolution, three dilated 3×3 ones and the mean of the map, concatenated and projected."""

    def __init__(self, channels: int, out: int, rates: tuple[int, int, int]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [ConvNormAct(channels, out, 1), *(ConvNormAct(channels, out, 3, rate) for rate in rates)]
        )
        # no batch norm on the mean: with one image per batch each channel has a single value and no deviation
        self.pool = nn.Conv2d(channels, out, 1)
        self.project = ConvNormAct(5 * out, out, 1)

    def forward(self, maps: Tensor) -> Tensor:
        joined = [branch(maps) for branch in self.branches]
        mean = F.relu(self.pool(maps.mean(dim=(2, 3), keepdim=True)))
        joined.append(mean.expand(-1, -1, *maps.shape[-2:]))
        return self.project(torch.cat(joined, dim=1))


@DECODERS.register("deeplabv3")
class DeepLabV3(Decoder):
    """ASPP over the encoder's last map, at its resolution."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        last = encoder.pyramid[-1]
        self.channels, self.stride = encoder.decoder_channels, last.stride
        self.aspp = AtrousPyramid(last.channels, self.channels, RATES.get(last.stride, RATES[16]))

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        return self.aspp(pyramid[-1])


@DECODERS.register("deeplabv3plus")
class DeepLabV3Plus(Decoder):
    """ASPP, upsampled to the finest map's resolution, concatenated with it and refined."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        if len(encoder.pyramid) < 2:
            raise TissError(
                f"deeplabv3plus needs a finer map as well, and {encoder.name} has one resolution only: "
                "take deeplabv3, linear or mask",
                setting="model.decoder",
            )
        first, last = encoder.pyramid[0], encoder.pyramid[-1]
        self.channels, self.stride = encoder.decoder_channels, first.stride
        self.aspp = AtrousPyramid(last.channels, self.channels, RATES.get(last.stride, RATES[16]))
        reduced = max(self.channels * 3 // 16, 1)  # 48 of 256, as published
        self.reduce = ConvNormAct(first.channels, reduced, 1)
        self.refine = nn.Sequential(
            ConvNormAct(self.channels + reduced, self.channels, 3),
            ConvNormAct(self.channels, self.channels, 3),
        )

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        fine = self.reduce(pyramid[0])
        coarse = self.aspp(pyramid[-1])
        coarse = F.interpolate(coarse, fine.shape[-2:], mode="bilinear", align_corners=False)
        return self.refine(torch.cat([coarse, fine], dim=1))


@DECODERS.register("mlp")
class MlpDecoder(Decoder):
    """SegFormer's: one linear layer per map, bilinear upsampling to the finest map, one fusing layer."""

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
        finer = [F.interpolate(maps, size, mode="bilinear", align_corners=False) for maps in projected[1:]]
        return self.fuse(torch.cat([projected[0], *finer], dim=1))
