"""Swin's names; the network itself is timm's, imported when one is built."""

from __future__ import annotations

from typing import Any

from tiss.models.encoder import ENCODERS, Encoder, EncoderOptions

NAMES = (
    "swin_tiny_patch4_window7_224",
    "swin_small_patch4_window7_224",
    "swin_base_patch4_window7_224",
    "swin_base_patch4_window12_384",
)
MICRO = {"img_size": 64, "window_size": 4, "embed_dim": 8, "depths": (1, 1, 1, 2), "num_heads": (1, 1, 2, 2)}


def register(name: str, settings: dict[str, Any] | None = None) -> None:
    """Makes a Swin known by name; `settings` differ from the tiny one's."""

    @ENCODERS.register(name)
    def build(options: EncoderOptions) -> Encoder:
        from tiss.models.timm_encoder import SwinEncoder

        return SwinEncoder(name, options, settings)


for swin in NAMES:
    register(swin)
register("swin_micro", MICRO)
