"""Which samples a batch holds and how each is cut: pure functions of a request, in whichever process they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.data.augment import AugmentSettings, centre, crop_batch, draw, shrink
from tiss.errors import TissError
from tiss.randomness import epoch_order

Size = tuple[int, int]  # height and width
Place = tuple[int, Size]  # offset in a buffer of packed pixels, and size


class Source(Protocol):
    """Where pixels come from: files, or the store in memory."""

    def find(self, id: str) -> Any:
        """What `collect` needs of one sample; a broken one raises a TissError."""

    def collect(self, found: Sequence[Any]) -> tuple[Tensor, list[Place]]:
        """A flat buffer of packed pixels, and where each sample is in it."""


@dataclass
class RawBatch:
    """A batch on its way: labels are still one byte per pixel, already in channels; or why there is none."""

    image: Tensor = field(default_factory=lambda: torch.empty(0, 3, 0, 0, dtype=torch.uint8))
    label: Tensor = field(default_factory=lambda: torch.empty(0, 0, 0, dtype=torch.uint8))
    ids: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    error: str | None = None

    def pin_memory(self) -> RawBatch:
        """Called by torch's loader where batches go to a GPU."""
        return RawBatch(self.image.pin_memory(), self.label.pin_memory(), self.ids, self.skipped, self.error)


class Plan(Protocol):
    """Makes the batch of a request."""

    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def shorter(self) -> int | None:
        """The shorter side that images need at most."""

    def make(self, request: Any, source: Source, table: Tensor) -> RawBatch: ...


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

    def make(self, request: tuple[int, int, int], source: Source, table: Tensor) -> RawBatch:
        epoch, iteration, part = request
        positions = self.positions(iteration, part)
        order, count = self._epoch_order(epoch), len(self.ids)
        at = list(positions)  # where each sample is read; a broken one moves on to the next position
        skipped: list[str] = []

        def next_position(place: int, message: str) -> str | None:
            skipped.append(self.ids[order[at[place] % count]])
            at[place] += 1
            if not self.skip:
                raise TissError(message)
            if at[place] - positions[place] >= count:
                raise TissError(f"no training image of this step can be read; the last: {message}")
            return self.ids[order[at[place] % count]]

        try:
            ids, found = _find(source, [self.ids[order[place % count]] for place in at], next_position)
        except TissError as error:
            return RawBatch(error=str(error))
        buffer, places = source.collect(found)
        augmentations = [
            draw(self.settings, *size, (self.seed, "augment", self.step, epoch, position))
            for position, (_, size) in zip(positions, places, strict=True)
        ]
        crop = (self.settings.crop, self.settings.crop)
        return RawBatch(*crop_batch(buffer, places, augmentations, crop, table), ids, skipped)

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

    def make(self, request: int, source: Source, table: Tensor) -> RawBatch:
        count = self.batch if self.mode == "crop" else 1
        wanted = self.ids[request * count : (request + 1) * count]
        skipped: list[str] = []

        def leave_out(place: int, message: str) -> str | None:
            if not self.skip:
                raise TissError(message)
            skipped.append(wanted[place])
            return None

        try:
            ids, found = _find(source, wanted, leave_out)
        except TissError as error:
            return RawBatch(error=str(error))
        if not ids:
            return RawBatch(skipped=skipped)
        buffer, places = source.collect(found)
        if self.mode == "slide":
            return RawBatch(*self._whole(buffer, places[0], table), ids, skipped)
        cuts = [centre(*size, self.size) for _, size in places]
        return RawBatch(*crop_batch(buffer, places, cuts, (self.size, self.size), table), ids, skipped)

    def _whole(self, buffer: Tensor, place: Place, table: Tensor) -> tuple[Tensor, Tensor]:
        """The whole image with its shorter side resized to `size`, and the label as it is in the file."""
        offset, (height, width) = place
        pixels = buffer[offset : offset + height * width]
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


def _find(
    source: Source, ids: Sequence[str], on_broken: Callable[[int, str], str | None]
) -> tuple[list[str], list[Any]]:
    """Samples that can be read; `on_broken` (place in the list, message) names another for a broken one, or None."""
    read, found = [], []
    for place, id in enumerate(ids):
        wanted: str | None = id
        while wanted is not None:
            try:
                found.append(source.find(wanted))
            except TissError as error:
                wanted = on_broken(place, str(error))
                continue
            read.append(wanted)
            break
    return read, found
