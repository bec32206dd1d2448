"""Builds models from names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from tiss.config import ModelConfig
from tiss.errors import TissError
from tiss.models.decoder import DECODERS
from tiss.models.encoder import ENCODERS, EncoderOptions, Family, MissingPackageError, make_encoder, outline
from tiss.models.model import Architecture, Rule, SegmentationModel
from tiss.models.pretrained import load_pretrained
from tiss.randomness import seed_of


def build_model(
    config: ModelConfig,
    classes: Sequence[str],
    crop: int | None = None,
    *,
    head: str | None = None,
    seed: int = 0,
) -> SegmentationModel:
    """A model for `classes` (the background's name first), pretrained where the configuration says so.

    `crop` is the side that position embeddings are made for, unless the configuration has one; `head` replaces the
    decoder's default head. The same `seed` always gives the same weights.
    """
    architecture = resolve(config, crop, head)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "model") >> 1)
        model = from_architecture(architecture, classes)
    if config.pretrained is not None:
        load_pretrained(model.encoder, config.pretrained, allow_pickle=config.allow_pickle)
        model.body.take_colours()
    return model


def resolve(config: ModelConfig, crop: int | None = None, head: str | None = None) -> Architecture:
    """Fills in what the configuration leaves to the encoder and the decoder; builds nothing large."""
    if config.encoder is None:
        raise TissError("is needed: `tiss encoders` lists the names", setting="model.encoder")
    encoder = outline(config.encoder)
    with torch.device("meta"):
        decoder_name = config.decoder or encoder.default_decoder
        decoder = DECODERS.get(decoder_name)(encoder)
    size = config.image_size or crop or encoder.default_image_size
    return Architecture(config.encoder, decoder_name, head or decoder.default_head, size, config.drop_path)


def from_architecture(
    architecture: Architecture,
    classes: Sequence[str],
    groups: Sequence[Sequence[int]] | None = None,
    rule: Rule = "softmax",
) -> SegmentationModel:
    """A model with fresh weights."""
    encoder = make_encoder(
        architecture.encoder, EncoderOptions(architecture.image_size, architecture.drop_path)
    )
    decoder = DECODERS.get(architecture.decoder)(encoder)
    return SegmentationModel(architecture, encoder, decoder, classes, groups, rule)


@dataclass(frozen=True)
class EncoderInfo:
    """One line of `tiss encoders`."""

    name: str
    family: Family
    parameters: int
    stride: int
    depth: int
    image_size: int
    default_decoder: str


def describe_encoder(name: str) -> EncoderInfo:
    """An encoder's properties, without memory for its weights."""
    encoder = outline(name)
    return EncoderInfo(
        name,
        encoder.family,
        sum(parameter.numel() for parameter in encoder.parameters()),
        encoder.pyramid[-1].stride,
        encoder.depth,
        encoder.default_image_size,
        encoder.default_decoder,
    )


def list_encoders() -> list[EncoderInfo]:
    """Every registered encoder, sorted by name; without timm, those that need it are left out."""
    found = []
    for name in ENCODERS:
        with suppress(MissingPackageError):
            found.append(describe_encoder(name))
    return found
