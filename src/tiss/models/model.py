"""The model: three slots. features = encoder(images); map = decoder(features); logits = head(map).

`logits` stay at the decoder's own resolution. Only losses (inside) and prediction bring them to pixels, as
`Resolution` says: bilinear (align_corners=False) to the padded size, then cropped to the input's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiss.config import ModelConfig
from tiss.errors import TissError
from tiss.models.decoder import DECODERS, HEADS, Decoder, Head, Initialise
from tiss.models.encoder import (
    ENCODERS,
    Encoder,
    EncoderOptions,
    MissingPackageError,
    Need,
    make_encoder,
    outline,
)
from tiss.models.pretrained import load_pretrained
from tiss.models.wrapped import register
from tiss.randomness import seed_of

Fused = Literal["auto", "on", "off"]
Rule = Literal["softmax", "sigmoid"]


@dataclass(frozen=True)
class Resolution:
    """How logits of a decoder become logits of pixels."""

    size: tuple[int, int]  # the input's height and width
    padded: tuple[int, int]  # after padding to a multiple of the patch, at the right and the bottom
    fused: Fused = "auto"  # whether losses may use the kernel that never holds full-resolution logits
    aligned: bool = False  # align_corners, for models of libraries that upsample so

    @classmethod
    def of(cls, height: int, width: int) -> Resolution:
        return cls((height, width), (height, width))

    def upsample(self, logits: Tensor) -> Tensor:
        """Logits N × C × h × w to N × C × H × W."""
        if tuple(logits.shape[-2:]) != self.padded:
            logits = F.interpolate(
                logits.contiguous(), self.padded, mode="bilinear", align_corners=self.aligned
            )
        return logits[..., : self.size[0], : self.size[1]]


@dataclass
class Output:
    """What a model's forward pass returns."""

    logits: Tensor  # N × C × h × w, at the decoder's resolution
    features: tuple[
        Tensor, ...
    ]  # N × D × h × w (of classes: N × D × C × 1), in the order of the needs asked for
    resolution: Resolution

    def pixels(self) -> Tensor:
        """Logits at the input's resolution: for prediction only."""
        return self.resolution.upsample(self.logits)

    def with_fused(self, fused: Fused) -> Output:
        # the fused kernels know one kind of upsampling
        fused = "off" if self.resolution.aligned else fused
        return replace(self, resolution=replace(self.resolution, fused=fused))


def tokens(feature_map: Tensor) -> Tensor:
    """A feature map N × D × h × w as patch tokens N × n × D (a view where the map came from tokens)."""
    return torch.flatten(feature_map, 2).transpose(1, 2)


@dataclass(frozen=True)
class Architecture:
    """What it takes to build a model again: names, and the side that position embeddings are made for."""

    encoder: str
    decoder: str
    head: str
    image_size: int
    drop_path: float = 0.0
    head_width: int = 0  # of a head on random features
    network: dict | None = None  # what rebuilds an encoder of another library

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise TissError(f"{self.image_size}: must be at least 1", setting="model.image_size")
        if not 0 <= self.drop_path < 1:
            raise TissError(f"{self.drop_path}: must be in [0, 1)", setting="model.drop_path")
        if not (1 if self.head == "random" else 0) <= self.head_width <= 1 << 16:
            raise TissError(f"{self.head_width}: does not fit a head {self.head!r}", setting="head_width")

    def make_head(self, decoder: Decoder, sizes: Sequence[int]) -> Head:
        """The head on a decoder's map, with the logits of each group; the first counts the background."""
        random = {"width": self.head_width, "parts": decoder.parts} if self.head_width else {}
        return HEADS.get(self.head)(decoder.channels, sizes, **random)


class Body(nn.Module):
    """Everything before the head. Its shapes never change, so a compiled body stays compiled."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.register_buffer("mean", torch.empty(1, 3, 1, 1))
        self.register_buffer("std", torch.empty(1, 3, 1, 1))
        self.take_colours()

    mean: Tensor
    std: Tensor

    def take_colours(self) -> None:
        """Copies mean and deviation from the encoder, whose weights may have come with their own."""
        self.mean.copy_(torch.tensor(self.encoder.mean).view(1, 3, 1, 1))
        self.std.copy_(torch.tensor(self.encoder.std).view(1, 3, 1, 1))

    def forward(self, images: Tensor, needs: tuple[Need, ...] = ()) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Images N × 3 × H × W, uint8 or float in 0..255, to (map, features): N × D × h × w each."""
        images = (images.to(self.mean.dtype) / 255 - self.mean) / self.std
        (height, width), stride = images.shape[-2:], self.encoder.stride
        padded = F.pad(images, (0, -width % stride, 0, -height % stride))
        read = self.decoder.needs
        pyramid, features = self.encoder(padded, (*read, *(need for need in needs if need != "decoder")))
        maps = (*features[: len(read)], *pyramid)
        if self.decoder.halved:
            padded = F.pad(images, (0, -width % (2 * stride), 0, -height % (2 * stride)))
            maps = (*maps, self.encoder(F.avg_pool2d(padded, 2))[0][-1])
        decoded = self.decoder(maps)
        rest = iter(features[len(read) :])
        return decoded, tuple(decoded if need == "decoder" else next(rest) for need in needs)


class SegmentationModel(nn.Module):
    """Encoder, decoder and growing head, with the names of its classes."""

    def __init__(
        self,
        architecture: Architecture,
        classes: Sequence[str],
        groups: Sequence[Sequence[int]] | None = None,
        rule: Rule = "softmax",
    ) -> None:
        """`classes` are names, the background's first; `groups` each step's channels (None: one step)."""
        super().__init__()
        check_classes(classes)
        if architecture.network is not None:
            architecture = replace(architecture, encoder=register(architecture.network))
        self.architecture = architecture
        self.classes = list(classes)
        self.groups = [list(group) for group in groups or [range(1, len(classes))]]
        if list(chain(*self.groups)) != list(range(1, len(classes))):
            raise TissError(
                f"the groups of classes must hold the channels 1 to {len(classes) - 1} in order, once each"
            )
        self.rule: Rule = rule  # how logits become labels
        self.record: dict[str, Any] = {}  # what else a model folder says: step, parent, evaluation, …
        options = EncoderOptions(architecture.image_size, architecture.drop_path)
        encoder = make_encoder(architecture.encoder, options)
        decoder = DECODERS.get(architecture.decoder)(encoder)
        self.body = Body(encoder, decoder)
        self.head: Head = architecture.make_head(decoder, self.group_sizes())

    def group_sizes(self) -> list[int]:
        """The logits of each group; the first counts the background."""
        return [len(group) + (index == 0) for index, group in enumerate(self.groups)]

    def set_head(self, head: str, width: int = 0) -> None:
        """Replaces the head by an untrained one."""
        self.architecture = replace(self.architecture, head=head, head_width=width)
        device = next(self.body.parameters()).device
        self.head = self.architecture.make_head(self.decoder, self.group_sizes()).to(device)

    @property
    def encoder(self) -> Encoder:
        return self.body.encoder

    @property
    def decoder(self) -> Decoder:
        return self.body.decoder

    def forward(self, images: Tensor, needs: tuple[Need, ...] = ()) -> Output:
        """Images N × 3 × H × W, uint8 or float in 0..255; `needs` names the features to return."""
        decoded, features = self.body(
            images, tuple(need for need in needs if need not in self.head.named_needs)
        )
        logits, named = self.head.read(decoded)
        rest = iter(features)
        features = tuple(named[need] if need in named else next(rest) for need in needs)
        return Output(logits, features, self.resolution(images))

    def resolution(self, images: Tensor) -> Resolution:
        """How this model's logits for `images` become pixels."""
        (height, width), stride = images.shape[-2:], self.encoder.stride
        padded = height + -height % stride, width + -width % stride
        return Resolution((height, width), padded, aligned=self.encoder.aligned)

    def grow(self, new_classes: Iterable[str], initialise: Initialise, seed: int = 0) -> None:
        """Adds a group of classes to the head; `seed` makes random rows the same in every process."""
        names = list(new_classes)
        if not names:
            raise TissError("a step must add at least one class")
        check_classes([*self.classes, *names])
        generator = torch.Generator().manual_seed(seed_of(seed, "grow", len(self.groups)) >> 1)
        self.head.grow(len(names), initialise, generator)
        self.groups.append(list(range(len(self.classes), len(self.classes) + len(names))))
        self.classes += names

    def predict_labels(self, output: Output) -> Tensor:
        """Channel numbers, N × H × W int64, by the model's rule."""
        return choose_labels(output.pixels(), self.rule)

    def save_pretrained(self, folder: str | Path, record: Mapping[str, Any] | None = None) -> None:
        """Writes a model folder: config.json, model.safetensors, README.md. `record` joins `self.record`."""
        from tiss.models.folder import save_model

        save_model(self, Path(folder), record)

    @classmethod
    def from_pretrained(cls, source: str | Path, *, allow_download: bool = True) -> SegmentationModel:
        """Reads a model folder, or fetches one from the hub by its name."""
        from tiss.models.folder import from_pretrained

        return from_pretrained(source, allow_download=allow_download)


def choose_labels(pixels: Tensor, rule: Rule) -> Tensor:
    """Channels N × H × W: the largest logit, or ("sigmoid") the largest foreground sigmoid if over .5, else 0."""
    return comparable(pixels, rule).argmax(dim=1)


def comparable(logits: Tensor, rule: Rule) -> Tensor:
    """Logits whose largest is the label, at any resolution."""
    # sigmoid(z) > .5 is z > 0, and the first of equals wins
    return logits if rule == "softmax" else torch.cat([torch.zeros_like(logits[:, :1]), logits[:, 1:]], dim=1)


def check_classes(classes: Sequence[str]) -> None:
    twice = sorted(name for name, times in Counter(classes).items() if times > 1)
    if twice:
        raise TissError(f"class {twice[0]!r} is named twice: every class needs its own name")
    if not classes:
        raise TissError("a model needs at least the background's class")


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
        model = SegmentationModel(architecture, classes)
    if config.pretrained is not None:
        load_pretrained(model.encoder, config.pretrained, allow_pickle=config.allow_pickle)
        model.body.take_colours()
    return model


def resolve(config: ModelConfig, crop: int | None = None, head: str | None = None) -> Architecture:
    """Fills in what the configuration leaves to the encoder and the decoder; builds nothing large."""
    if config.encoder is None:
        raise TissError("is needed: `tiss encoders` lists the names", setting="model.encoder")
    encoder = outline(config.encoder)
    name = config.decoder or encoder.default_decoder
    with torch.device("meta"):
        decoder = DECODERS.get(name)(encoder)
    size = config.image_size or crop or encoder.default_image_size
    return Architecture(config.encoder, name, head or decoder.default_head, size, config.drop_path)


def list_encoders() -> list[Encoder]:
    """An outline of every registered encoder, sorted by name; without timm, those that need it are left out."""
    found = []
    for name in ENCODERS:
        with suppress(MissingPackageError):
            found.append(outline(name))
    return found
