"""The model: three slots. features = encoder(images); map = decoder(features); logits = head(map)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiss.errors import TissError
from tiss.models.contract import Need, Output, Resolution
from tiss.models.decoder import Decoder
from tiss.models.encoder import Encoder
from tiss.models.head import HEADS, Head, Initialise
from tiss.randomness import seed_of

Rule = Literal["softmax", "sigmoid"]


@dataclass(frozen=True)
class Architecture:
    """What it takes to build a model again: names, and the side that position embeddings are made for."""

    encoder: str
    decoder: str
    head: str
    image_size: int
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise TissError(f"{self.image_size}: must be at least 1", setting="model.image_size")
        if not 0 <= self.drop_path < 1:
            raise TissError(f"{self.drop_path}: must be in [0, 1)", setting="model.drop_path")


class Body(nn.Module):
    """Everything before the head. Its shapes never change, so a compiled body stays compiled."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.register_buffer("mean", torch.tensor(encoder.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(encoder.std).view(1, 3, 1, 1))

    mean: Tensor
    std: Tensor

    def take_colours(self) -> None:
        """Copies mean and deviation from the encoder, whose weights may have come with their own."""
        self.mean.copy_(torch.tensor(self.encoder.mean).view(1, 3, 1, 1))
        self.std.copy_(torch.tensor(self.encoder.std).view(1, 3, 1, 1))

    def forward(self, images: Tensor, needs: tuple[Need, ...] = ()) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Images N × 3 × H × W, uint8 or float in 0..255, to (map, features): N × D × h × w each."""
        images = (images.to(self.mean.dtype) / 255 - self.mean) / self.std
        images = F.pad(images, padding(images.shape[-2:], self.encoder.stride))
        pyramid, features = self.encoder(images, tuple(need for need in needs if need != "decoder"))
        decoded = self.decoder(pyramid)
        rest = iter(features)
        return decoded, tuple(decoded if need == "decoder" else next(rest) for need in needs)


class SegmentationModel(nn.Module):
    """Encoder, decoder and growing head, with the names of its classes."""

    def __init__(
        self,
        architecture: Architecture,
        encoder: Encoder,
        decoder: Decoder,
        classes: Sequence[str],
        groups: Sequence[Sequence[int]] | None = None,
        rule: Rule = "softmax",
    ) -> None:
        """`classes` are names, the background's first; `groups` each step's channels (None: one step)."""
        super().__init__()
        check_classes(classes)
        self.architecture = architecture
        self.classes = list(classes)
        self.groups = [list(group) for group in groups or [range(1, len(classes))]]
        check_groups(self.groups, len(self.classes))
        self.rule: Rule = rule  # how logits become labels
        self.record: dict[str, Any] = {}  # what else a model folder says: step, parent, evaluation, …
        self.body = Body(encoder, decoder)
        sizes = [len(group) + (index == 0) for index, group in enumerate(self.groups)]
        self.head: Head = HEADS.get(architecture.head)(decoder.channels, sizes)

    @property
    def encoder(self) -> Encoder:
        return self.body.encoder

    @property
    def decoder(self) -> Decoder:
        return self.body.decoder

    def forward(self, images: Tensor, needs: tuple[Need, ...] = ()) -> Output:
        """Images N × 3 × H × W, uint8 or float in 0..255; `needs` names the features to return."""
        decoded, features = self.body(images, needs)
        return Output(self.head(decoded), features, self.resolution(images))

    def resolution(self, images: Tensor) -> Resolution:
        """How this model's logits for `images` become pixels."""
        height, width = images.shape[-2:]
        _, right, _, bottom = padding((height, width), self.encoder.stride)
        return Resolution((height, width), (height + bottom, width + right))

    def grow(self, new_classes: Iterable[str], initialise: Initialise, seed: int = 0) -> None:
        """Adds a group of classes to the head; `seed` makes random rows the same in every process."""
        names = list(new_classes)
        check_classes([*self.classes, *names])
        if not names:
            raise TissError("a step must add at least one class")
        generator = torch.Generator().manual_seed(seed_of(seed, "grow", len(self.groups)) >> 1)
        self.head.grow(len(names), initialise, generator)
        first = len(self.classes)
        self.classes += names
        self.groups.append(list(range(first, first + len(names))))

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
    """Logits N × C × H × W to channel numbers N × H × W.

    "softmax": the largest logit. "sigmoid": the largest foreground sigmoid if over .5, else background.
    """
    if rule == "softmax":
        return pixels.argmax(dim=1)
    if pixels.shape[1] == 1:
        return torch.zeros_like(pixels[:, 0], dtype=torch.int64)
    best, channel = pixels[:, 1:].max(dim=1)
    return torch.where(best > 0, channel + 1, 0)  # sigmoid(z) > .5 is z > 0


def padding(size: Sequence[int], stride: int) -> tuple[int, int, int, int]:
    """Left, right, top, bottom padding that brings height and width to multiples of `stride`."""
    height, width = size
    return (0, -width % stride, 0, -height % stride)


def check_classes(classes: Sequence[str]) -> None:
    twice = sorted(name for name, times in Counter(classes).items() if times > 1)
    if twice:
        raise TissError(f"class {twice[0]!r} is named twice: every class needs its own name")
    if not classes:
        raise TissError("a model needs at least the background's class")


def check_groups(groups: Sequence[Sequence[int]], classes: int) -> None:
    if [channel for group in groups for channel in group] != list(range(1, classes)):
        raise TissError(
            f"the groups of classes must hold the channels 1 to {classes - 1} in order, once each"
        )
