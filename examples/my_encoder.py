"""ConvMixer: patches, then blocks of a depthwise and a pointwise convolution, all at one scale."""

import torch.nn.functional as F
from torch import Tensor, nn

from tiss import models


class MixerBlock(nn.Module):
    """N × D × h × w to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 5, padding="same", groups=channels)
        self.norm1 = nn.BatchNorm2d(channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, maps: Tensor) -> Tensor:
        maps = maps + self.norm1(F.gelu(self.depthwise(maps)))
        return self.norm2(F.gelu(self.pointwise(maps)))


class ConvMixer(models.Encoder):
    family = "cnn"
    contrast_blocks = None
    tuned = models.Tuned("adamw", lr=1e-3, step_lr=5e-4, encoder_lr=1.0, weight_decay=0.05)

    def __init__(self, name: str, channels: int, depth: int, patch: int) -> None:
        super().__init__()
        self.name, self.depth, self.channels, self.stride = name, depth, channels, patch
        self.pyramid = (models.Level(channels, patch),)
        self.pod_needs = tuple(range(depth))
        self.embed = nn.Conv2d(3, channels, patch, patch)
        self.blocks = nn.ModuleList(MixerBlock(channels) for _ in range(depth))

    def forward(
        self, images: Tensor, needs: tuple[models.Need, ...] = ()
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        wanted = self.resolve(needs)  # checked; −1 becomes the last block
        maps = F.gelu(self.embed(images))
        found: dict[models.Need, Tensor] = {}
        for index, block in enumerate(self.blocks):
            maps = self.run_block(block, maps)  # respects --train.checkpointing
            found[index] = maps
        return (maps,), tuple(found[need] for need in wanted)


@models.ENCODERS.register("convmixer_tiny")
def convmixer_tiny(options: models.EncoderOptions) -> models.Encoder:
    return ConvMixer("convmixer_tiny", channels=32, depth=3, patch=8)
