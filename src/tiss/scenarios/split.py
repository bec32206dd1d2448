"""A list of images together with the table that turns their label values into channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiss.data.base import BACKGROUND, IGNORE, Dataset, Sample
from tiss.data.check import read_checked
from tiss.scenarios.protocol import Protocol


@dataclass(frozen=True)
class Split:
    """Images of one step, for training or for the test.

    `table` is uint8[256]: label value in the file → channel. `shared` is one dictionary for all splits of a
    scenario, where a loader may keep what it has decoded.
    """

    dataset: Dataset
    split: str  # the data set's own split: "train" or "test"
    ids: tuple[str, ...]
    table: np.ndarray
    shared: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

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

    `background` is what label 0 becomes unless the protocol says it: 0, or 255 where it is no real class.
    """
    table = np.full(256, IGNORE, np.uint8)
    table[BACKGROUND] = background
    if protocol.other is not None:
        table[BACKGROUND] = BACKGROUND if protocol.other == "background" else IGNORE
    for value in unseen:
        table[value] = BACKGROUND if protocol.unseen == "background" else IGNORE
    for value, channel in seen.items():
        table[value] = channel
    return table
