"""What readers of labels return, and how outlines become pixels: one rasteriser, and the rule for overlaps.

A pixel belongs to an outline if its centre lies inside; a centre exactly on a left or upper edge is
inside, on a right or lower edge outside. So outlines that share an edge neither overlap nor leave a gap,
and areas are kept on average. Coordinates count from the image's upper left corner; the first pixel's
centre is (0.5, 0.5).
"""

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from PIL import Image

from tiss.data.base import BACKGROUND, IGNORE
from tiss.data.classes import BACKGROUND_NAMES, IGNORE_NAMES
from tiss.data.images import FORMATS, MAX_PIXELS, Colour
from tiss.errors import TissError

Points = Sequence[tuple[float, float]]
Overlap = Literal["smaller", "order"]


@dataclass(frozen=True)
class Patch:
    """The pixels of an object: bool h × w, whose upper left corner lies at (top, left) of the image."""

    top: int
    left: int
    inside: np.ndarray

    def area(self) -> int:
        return int(self.inside.sum())


class Shape(Protocol):
    """Anything that covers pixels of an image of a given size."""

    def cover(self, height: int, width: int) -> Patch: ...


@dataclass(frozen=True)
class Labelled:
    """One image and what is on it: objects to draw, or a mask file in colours."""

    id: str
    image: Path
    where: str  # the file that describes it, for errors
    size: tuple[int, int] | None = None  # width and height that the labels were drawn on
    objects: tuple[tuple[str, Shape], ...] = ()
    mask: Path | None = None
    split: str | None = None  # train or test where the source says so


@dataclass
class Found:
    """What a converter read: classes in order, images, and what it had to leave out (reason → count)."""

    classes: list[str]
    images: list[Labelled]
    colours: dict[Colour, str] = field(default_factory=dict)  # of mask files
    left_out: Counter[str] = field(default_factory=Counter)


def _empty(corners: Points, height: int, width: int) -> Patch:
    """A patch around all corners, cut at the border."""
    (left, top), (right, bottom) = np.min(corners, axis=0), np.max(corners, axis=0)
    top, left = max(0, math.floor(top)), max(0, math.floor(left))
    shape = (max(0, min(height, math.ceil(bottom)) - top), max(0, min(width, math.ceil(right)) - left))
    return Patch(top, left, np.zeros(shape, bool))


@dataclass(frozen=True)
class Polygon:
    """The union of `rings` without `holes`; each is a closed line of corners (x, y)."""

    rings: tuple[Points, ...]
    holes: tuple[Points, ...] = ()

    def cover(self, height: int, width: int) -> Patch:
        corners = [corner for ring in self.rings for corner in ring] or [(0.0, 0.0)]
        patch = _empty(corners, height, width)
        place = (patch.inside.shape, patch.top, patch.left)
        for ring in self.rings:
            np.logical_or(patch.inside, fill_ring(ring, *place), out=patch.inside)
        for hole in self.holes:
            patch.inside[fill_ring(hole, *place)] = False
        return patch


def fill_ring(points: Points, shape: tuple[int, ...], top: int = 0, left: int = 0) -> np.ndarray:
    """Pixels whose centre lies inside the closed line through `points` (even-odd rule), bool h × w.

    >>> int(fill_ring([(0, 0), (8, 0), (0, 8)], (8, 8)).sum())
    28
    """
    filled = np.zeros(shape, bool)
    if len(points) < 3:
        return filled
    line = np.asarray(points, np.float64) - (left, top)
    x0, y0 = line.T
    x1, y1 = np.roll(line, -1, axis=0).T
    for row in range(shape[0]):
        centre = row + 0.5
        crossing = (y0 <= centre) != (y1 <= centre)
        if not crossing.any():
            continue
        a, b, c, d = x0[crossing], y0[crossing], x1[crossing], y1[crossing]
        places = np.sort(a + (centre - b) * (c - a) / (d - b))
        columns = np.clip(np.ceil(places - 0.5), 0, shape[1]).astype(int)
        for begin, end in zip(columns[::2], columns[1::2], strict=True):
            filled[row, begin:end] ^= True
    return filled


@dataclass(frozen=True)
class Disc:
    """A circle with its inside."""

    x: float
    y: float
    radius: float

    def cover(self, height: int, width: int) -> Patch:
        corners = [(self.x - self.radius, self.y - self.radius), (self.x + self.radius, self.y + self.radius)]
        patch = _empty(corners, height, width)
        rows, columns = (np.arange(length) + 0.5 for length in patch.inside.shape)
        rows, columns = rows + (patch.top - self.y), columns + (patch.left - self.x)
        return Patch(patch.top, patch.left, rows[:, None] ** 2 + columns**2 < self.radius**2)


@dataclass(frozen=True)
class Runs:
    """Run lengths down the columns, of pixels outside and inside in turn (COCO's RLE, uncompressed)."""

    height: int
    width: int
    counts: tuple[int, ...]

    def cover(self, height: int, width: int) -> Patch:
        if (self.height, self.width) != (height, width):
            raise TissError(f"a run-length mask of {self.width} × {self.height} on {width} × {height} pixels")
        if any(count < 0 for count in self.counts) or sum(self.counts) != height * width:
            raise TissError("a run-length mask whose runs do not fill its image")
        values = np.arange(len(self.counts)) % 2 == 1
        return Patch(0, 0, np.repeat(values, self.counts).reshape(height, width, order="F"))


@dataclass(frozen=True)
class Stamp:
    """A small image file laid at (left, top): inside is where it is opaque or, without alpha, not black."""

    data: bytes
    left: int
    top: int

    def cover(self, height: int, width: int) -> Patch:
        try:
            with Image.open(io.BytesIO(self.data), formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise TissError("a bitmap with too many pixels")
                source = image.getchannel("A") if "A" in image.getbands() else image
                pixels = np.atleast_3d(np.array(source))
        except (OSError, ValueError, SyntaxError) as error:
            raise TissError(f"a broken bitmap ({error})") from None
        rows = slice(max(0, -self.top), max(0, height - self.top))
        columns = slice(max(0, -self.left), max(0, width - self.left))
        return Patch(max(0, self.top), max(0, self.left), np.asarray(pixels.any(axis=2))[rows, columns])


def paint(
    objects: Sequence[tuple[str, Shape]],
    height: int,
    width: int,
    numbers: Mapping[str, int],
    overlap: Overlap = "smaller",
) -> np.ndarray:
    """Label numbers, uint8 H × W: 0 where no object is.

    Where objects overlap, the one with fewer pixels is on top, since what is small is mostly in front; of
    two of equal size, and with `overlap="order"` always, the one later in the file. A label named background
    cuts out (0), one named ignore or void gives 255; labels without a number are left out.
    """
    patches = []
    for label, shape in objects:
        number = label_number(label, numbers)
        if number is not None:
            patches.append((number, shape.cover(height, width)))
    if overlap == "smaller":
        patches.sort(key=lambda item: -item[1].area())
    mask = np.zeros((height, width), np.uint8)
    for number, patch in patches:
        rows, columns = patch.inside.shape
        mask[patch.top : patch.top + rows, patch.left : patch.left + columns][patch.inside] = number
    return mask


def label_number(label: str, numbers: Mapping[str, int]) -> int | None:
    """What a label is drawn with; None if it is not drawn."""
    if label in numbers:
        return numbers[label]
    if label.lower() in BACKGROUND_NAMES:
        return BACKGROUND
    return IGNORE if label.lower() in IGNORE_NAMES else None
