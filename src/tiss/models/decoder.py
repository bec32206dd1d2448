"""Decoders: the second slot, from an encoder's pyramid to the one map that the head reads."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from tiss.models.encoder import Encoder
from tiss.registry import Registry


class Decoder(nn.Module):
    """Base of all decoders; a new one sets these attributes and writes `forward`."""

    channels: int  # of the map that it gives
    stride: int  # input pixels for each of the map's
    default_head: str = "linear"

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        """The encoder's maps, finest first, to N × D × h × w."""
        raise NotImplementedError


DECODERS: Registry[Callable[[Encoder], Decoder]] = Registry(
    "decoder", "decoders", ("tiss.models.deeplab", "tiss.models.mlp", "tiss.models.mask")
)


@DECODERS.register("linear")
class LinearDecoder(Decoder):
    """Nothing between the encoder's last map and the head: the paper's decoder is the head's one layer."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.channels = encoder.pyramid[-1].channels
        self.stride = encoder.pyramid[-1].stride

    def forward(self, pyramid: tuple[Tensor, ...]) -> Tensor:
        return pyramid[-1]
