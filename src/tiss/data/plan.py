"""Which samples a batch holds and how each is cut: pure functions of a request, wherever they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.data.augment import AugmentSettings, centre, crop_batch, draw, shrink
from tiss.data.source import Collected, Source
from tiss.errors import TissError
from tiss.randomness import epoch_order


@dataclass
class Made:
    """A batch on its way: labels still one byte a pixel, already in channels; or why there is none."""

    image: Tensor  # uint8 N × 3 × h × w
    label: Tensor  # uint8 N × h × w
    ids: list[str]
    skipped: list[str]
    error: str | None = None

    def pin_memory(self) -> Made:
        """Called by torch's loader where batches go to a GPU."""
        return Made(self.image.pin_memory(), self.label.pin_memory(), self.ids, self.skipped, self.error)


class Plan(Protocol):
    """Makes the batch of a request."""

    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def shorter(self) -> int | None:
        """The shorter side that pictures need at most."""

    def make(self, request: Any, source: Source, table: Tensor) -> Made: ...


@dataclass
class TrainPlan:
    """Training batches. A request is (epoch, iteration, part); `shares` = world × accumulate equal slices."""

    ids: tuple[str, ...]
    skip: bool
    settings: AugmentSettings
    batch: int
    seed: int
    step: int
    rank: int
    shares: int
    world: int
    _order: tuple[int, np.ndarray] | None = field(default=None, repr=False)  # of the last epoch asked for

    @property
    def shorter(self) -> int | None:
        return self.settings.resize

    def positions(self, iteration: int, part: int) -> range:
        """This rank's positions in the epoch's global order."""
        size = self.batch // self.shares
        first = iteration * self.batch + (part * self.world + self.rank) * size
        return range(first, first + size)

    def make(self, request: tuple[int, int, int], source: Source, table: Tensor) -> Made:
        epoch, iteration, part = request
        positions = self.positions(iteration, part)
        order = self._epoch_order(epoch)
        ids = self.ids
        at = list(positions)  # where each sample is read; a broken one moves on to the next position
        skipped: list[str] = []

        def next_position(place: int, message: str) -> str | None:
            skipped.append(ids[order[at[place] % len(ids)]])
            at[place] += 1
            if not self.skip:
                raise TissError(message)
            if at[place] - positions[place] >= len(ids):
                raise TissError(f"no training image of this step can be read; the last: {message}")
            return ids[order[at[place] % len(ids)]]

        try:
            found = source.collect([ids[order[place % len(ids)]] for place in at], next_position)
        except TissError as error:
            return _failed(str(error))
        augmentations = [
            draw(self.settings, height, width, (self.seed, "augment", self.step, epoch, position))
            for position, (height, width) in zip(positions, found.sizes, strict=True)
        ]
        crop = (self.settings.crop, self.settings.crop)
        image, label = crop_batch(found.buffer, found.offsets, found.sizes, augmentations, crop, table)
        return Made(image, label, found.ids, skipped)

    def _epoch_order(self, epoch: int) -> np.ndarray:
        known = self._order
        if known is None or known[0] != epoch:
            known = self._order = (epoch, epoch_order(self.seed, self.step, epoch, len(self.ids)))
        return known[1]


@dataclass
class TestPlan:
    """Test batches in the order of the ids. A request is the batch's number."""

    __test__ = False

    ids: tuple[str, ...]
    skip: bool
    size: int
    mode: Literal["crop", "slide"]
    batch: int

    @property
    def shorter(self) -> int | None:
        return self.size if self.mode == "crop" else None  # a whole image keeps its label's size

    def make(self, request: int, source: Source, table: Tensor) -> Made:
        count = self.batch if self.mode == "crop" else 1
        wanted = self.ids[request * count : (request + 1) * count]
        skipped: list[str] = []

        def leave_out(place: int, message: str) -> str | None:
            if not self.skip:
                raise TissError(message)
            skipped.append(wanted[place])
            return None

        try:
            found = source.collect(wanted, leave_out)
        except TissError as error:
            return _failed(str(error))
        if not found.ids:
            return Made(*_nothing(), [], skipped)
        if self.mode == "slide":
            image, label = self._whole(found, table)
        else:
            cuts = [centre(height, width, self.size) for height, width in found.sizes]
            image, label = crop_batch(
                found.buffer, found.offsets, found.sizes, cuts, (self.size, self.size), table
            )
        return Made(image, label, found.ids, skipped)

    def _whole(self, found: Collected, table: Tensor) -> tuple[Tensor, Tensor]:
        """The whole image with its shorter side at `size`, and the label as it lies in the file."""
        (offset,), ((height, width),) = found.offsets, found.sizes
        pixels = found.buffer[offset : offset + height * width]
        planes = pixels.view(torch.uint8).view(height, width, 4).permute(2, 0, 1)
        label = table.index_select(0, planes[3].flatten().int()).view(1, height, width)
        to = shrink(height, width, self.size)
        image = F.interpolate(
            planes[None, :3].float().contiguous(),
            (to.height, to.width),
            mode="bilinear",
            align_corners=False,
            antialias=True,
        )
        return image.round().clamp(0, 255).to(torch.uint8), label


def _failed(message: str) -> Made:
    return Made(*_nothing(), [], [], message)


def _nothing() -> tuple[Tensor, Tensor]:
    return torch.empty(0, 3, 0, 0, dtype=torch.uint8), torch.empty(0, 0, 0, dtype=torch.uint8)
