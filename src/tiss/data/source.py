"""Where a batch's pixels come from: pictures in one flat buffer, read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.data.augment import pack, shrink
from tiss.data.base import Dataset, Sample
from tiss.data.check import read_checked
from tiss.data.threads import one_thread
from tiss.errors import TissError

Where = tuple[int, tuple[int, int]]  # offset in the buffer; height and width
OnBroken = Callable[[int, str], str | None]  # place in the list, message → the id to take instead, or None


class Collected:
    """Pictures in a flat buffer of packed pixels: `ids[i]` starts at `offsets[i]` and has `sizes[i]`."""

    def __init__(self, buffer: Tensor, places: Sequence[Where], ids: list[str]) -> None:
        self.buffer = buffer
        self.offsets = [offset for offset, _ in places]
        self.sizes = [size for _, size in places]
        self.ids = ids


class Source(Protocol):
    """Gives the pictures of some ids. Of a broken one it asks `on_broken` what to do."""

    def collect(self, ids: Sequence[str], on_broken: OnBroken) -> Collected: ...


class FileSource:
    """Reads samples from the data set when they are asked for: what a worker process holds.

    Pictures whose shorter side is longer than `shorter` are brought to it as they are read.
    """

    def __init__(self, dataset: Dataset, split: str, shorter: int | None = None) -> None:
        self.dataset = dataset
        self.split = split
        self.shorter = shorter

    def read(self, id: str) -> tuple[Tensor, tuple[int, int]]:
        """Packed pixels of one sample, with its height and width."""
        with one_thread():
            sample = limit(read_checked(self.dataset, self.split, id), self.shorter)
            height, width = sample.label.shape
            return pack(sample), (height, width)

    def collect(self, ids: Sequence[str], on_broken: OnBroken) -> Collected:
        pixels: list[Tensor] = []
        places: list[Where] = []
        found: list[str] = []
        offset = 0
        for place, id in enumerate(ids):
            wanted: str | None = id
            while wanted is not None:
                try:
                    packed, size = self.read(wanted)
                except TissError as error:
                    wanted = on_broken(place, str(error))
                    continue
                pixels.append(packed)
                places.append((offset, size))
                found.append(wanted)
                offset += len(packed)
                break
        buffer = torch.cat(pixels) if pixels else torch.empty(0, dtype=torch.int32)
        return Collected(buffer, places, found)


def limit(sample: Sample, shorter: int | None) -> Sample:
    """A sample whose shorter side is at most `shorter`: image by area-weighted bilinear, label by nearest.

    A crop's own bilinear gather reads four pixels, which is right down to half the size; pictures far larger
    than the crop are brought down here once, so that they neither shimmer nor fill the memory.
    """
    height, width = sample.label.shape
    if shorter is None or min(height, width) <= shorter:
        return sample
    to = shrink(height, width, shorter)
    size = (to.height, to.width)
    image = F.interpolate(sample.image[None], size, mode="bilinear", align_corners=False, antialias=True)[0]
    label = F.interpolate(sample.label[None, None], size, mode="nearest-exact")[0, 0]
    return Sample(image, label, sample.id)
