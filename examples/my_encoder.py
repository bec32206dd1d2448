"""An encoder of one's own: patches, then blocks of a depthwise and a pointwise convolution, all at one scale."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from tiss.models.contract import Need
from tiss.models.encoder import ENCODERS, Encoder, EncoderOptions, Level, Tuned


class MixerBlock(nn.Module):
    """Mixes neighbouring patches, then channels: N × D × h × w to the same."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, kernel, padding="same", groups=channels)
        self.norm1 = nn.BatchNorm2d(channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, maps: Tensor) -> Tensor:
        maps = maps + self.norm1(F.gelu(self.depthwise(maps)))
        return self.norm2(F.gelu(self.pointwise(maps)))


class ConvMixer(Encoder):
    family = "cnn"  # decides which methods go with it
    contrast_blocks = None  # a transformer names its first and last block here
    tuned = Tuned("adamw", lr=1e-3, step_lr=5e-4, encoder_lr=1.0, weight_decay=0.05)

    def __init__(self, name: str, channels: int, depth: int, patch: int, options: EncoderOptions) -> None:
        super().__init__()
        self.name = name
        self.depth, self.channels, self.stride = depth, channels, patch
        self.pyramid = (Level(channels, patch),)  # the maps that a decoder reads: here one
        self.pod_needs = tuple(range(depth))  # the maps that PLOP holds fast
        self.embed = nn.Conv2d(3, channels, patch, patch)
        self.blocks = nn.ModuleList(MixerBlock(channels, kernel=5) for _ in range(depth))

    def forward(
        self, images: Tensor, needs: tuple[Need, ...] = ()
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        wanted = self.resolve(needs)  # −1 becomes the last block; what does not exist is an error
        maps = F.gelu(self.embed(images))
        found: dict[Need, Tensor] = {}
        for index, block in enumerate(self.blocks):
            maps = self.run_block(block, maps)  # recomputed in the backward pass where a user asks for that
            found[index] = maps
        return (maps,), tuple(found[need] for need in wanted)


@ENCODERS.register("convmixer_tiny")
def convmixer_tiny(options: EncoderOptions) -> Encoder:
    return ConvMixer("convmixer_tiny", channels=32, depth=3, patch=8, options=options)
