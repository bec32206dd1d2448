"""How label values become channels: the published protocols, and a list of images with its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tiss.config import ProtocolConfig
from tiss.data.base import BACKGROUND, IGNORE, Dataset, Sample, read_checked
from tiss.errors import TissError, suggest

Place = Literal["ignore", "background"]


@dataclass(frozen=True)
class Protocol:
    """A protocol with every part decided."""

    name: str
    border: Place  # what the void border (255) becomes in training
    unseen: Place  # what a class not seen yet becomes in the test
    test_images: Literal["all", "seen"]  # at a step: all of them, or those with a seen class
    headline: Literal["without", "with", "both"]  # the mean that the source prints, by the background
    other: Place | None = None  # label 0 in the test where it is no real class; None: the data set's choice


PROTOCOLS = {
    "mib": Protocol("mib", border="background", unseen="ignore", test_images="seen", headline="without"),
    "plop": Protocol(  # which keeps ADE20K's "other" as class 0
        "plop", border="ignore", unseen="background", test_images="seen", headline="with", other="background"
    ),
    "paper": Protocol("paper", border="ignore", unseen="background", test_images="all", headline="both"),
}


def resolve_protocol(config: ProtocolConfig | Protocol | str) -> Protocol:
    """The named variant with the parts that `config` overrides.

    >>> resolve_protocol(ProtocolConfig("mib", unseen="background")).unseen
    'background'
    """
    if isinstance(config, Protocol):
        return config
    if isinstance(config, str):
        config = ProtocolConfig(config)
    if config.name not in PROTOCOLS:
        raise TissError(suggest(config.name, PROTOCOLS, "protocol"))
    parts = {name: getattr(config, name) for name in ("border", "unseen", "test_images", "other")}
    return replace(
        PROTOCOLS[config.name], **{name: value for name, value in parts.items() if value is not None}
    )


@dataclass(frozen=True)
class Split:
    """Images of one step, for training or for the test.

    `table` is uint8[256]: label value in the file → channel.
    """

    dataset: Dataset
    split: str  # the data set's own split: "train" or "test"
    ids: tuple[str, ...]
    table: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, index: int) -> Sample:
        """Sample `index` with its label in channels."""
        sample = read_checked(self.dataset, self.split, self.ids[index])
        return Sample(sample.image, self.channels(sample.label), sample.id)

    def channels(self, label: Tensor) -> Tensor:
        """Label values (uint8, any shape) as channels."""
        return torch.from_numpy(self.table)[label.long()]


def training_table(current: Mapping[int, int], protocol: Protocol) -> np.ndarray:
    """Current classes (label value → channel) keep their channel; all others, old and future, become 0."""
    table = np.full(256, BACKGROUND, np.uint8)
    for value, channel in current.items():
        table[value] = channel
    table[IGNORE] = IGNORE if protocol.border == "ignore" else BACKGROUND
    return table


def evaluation_table(
    seen: Mapping[int, int], unseen: frozenset[int], protocol: Protocol, background: int
) -> np.ndarray:
    """All classes seen so far keep their channel; those not seen yet become what the protocol says.

    `background` is what label 0 becomes unless the protocol decides: 0, or 255 where it is no real class.
    """
    becomes = {"background": BACKGROUND, "ignore": IGNORE}
    table = np.full(256, IGNORE, np.uint8)
    table[BACKGROUND] = background if protocol.other is None else becomes[protocol.other]
    table[list(unseen)] = becomes[protocol.unseen]
    for value, channel in seen.items():
        table[value] = channel
    return table
