"""Models: encoder → decoder → head, one output contract."""

from __future__ import annotations

from tiss.models.build import EncoderInfo, build_model, describe_encoder, list_encoders, resolve
from tiss.models.contract import Need, Output, Resolution, tokens
from tiss.models.decoder import DECODERS, Decoder
from tiss.models.encoder import (
    ENCODERS,
    Encoder,
    EncoderDefaults,
    EncoderOptions,
    Level,
    Tuned,
    encoder_defaults,
)
from tiss.models.folder import from_pretrained, save_model, write_model
from tiss.models.head import HEADS, Head
from tiss.models.model import Architecture, SegmentationModel, choose_labels
from tiss.models.pretrained import load_pretrained

__all__ = [
    "DECODERS",
    "ENCODERS",
    "HEADS",
    "Architecture",
    "Decoder",
    "Encoder",
    "EncoderDefaults",
    "EncoderInfo",
    "EncoderOptions",
    "Head",
    "Level",
    "Need",
    "Output",
    "Resolution",
    "SegmentationModel",
    "Tuned",
    "build_model",
    "choose_labels",
    "describe_encoder",
    "encoder_defaults",
    "from_pretrained",
    "list_encoders",
    "load_pretrained",
    "resolve",
    "save_model",
    "tokens",
    "write_model",
]
