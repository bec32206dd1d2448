"""What readers of labels return, and how outlines become pixels: one rasteriser, and the rule for overlaps.

A pixel belongs to an outline if its centre lies inside; a centre exactly on a left or upper edge is
inside, on a right or lower edge outside. So outlines that share an edge neither overlap nor leave a gap,
and areas are kept on average. Coordinates count from the image's upper left corner; the first pixel's
centre is (0.5, 0.5).
"""

import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from PIL import Image

from tiss.data.base import BACKGROUND, IGNORE
from tiss.data.classes import BACKGROUND_NAMES, IGNORE_NAMES
from tiss.data.images import FORMATS, MAX_PIXELS, Blob
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
    """One image and what is on it: objects to draw, or a mask."""

    id: str
    image: Path | Callable[[], Blob]
    where: str  # the file that describes it, for errors
    size: tuple[int, int] | None = None  # width and height that the labels were drawn on
    objects: tuple[tuple[str, Shape], ...] = ()
    mask: Callable[[], np.ndarray] | None = None  # uint8 H × W: entries of Found.classes, 255 = ignore
    split: str | None = None  # train or test where the source says so


@dataclass
class Found:
    """What a reader found: classes in order, images, and what the user should know (line → count)."""

    classes: list[str]
    images: list[Labelled]
    notes: Counter[str] = field(default_factory=Counter)


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


def ellipse(x: float, y: float, across: float, down: float, degrees: float = 0) -> Polygon:
    """An ellipse by its centre and half axes, turned clockwise, as a polygon that is a 20,000th too small."""
    around = np.linspace(0, 2 * math.pi, 360, endpoint=False)
    along = across * np.cos(around) + 1j * down * np.sin(around)
    corners = along * np.exp(1j * math.radians(degrees)) + complex(x, y)
    return Polygon((list(zip(corners.real.tolist(), corners.imag.tolist(), strict=True)),))


@dataclass(frozen=True)
class Runs:
    """Run lengths of pixels outside and inside in turn, in a box of height × width pixels at (top, left).

    They go down the columns of the whole image (COCO) or, with `rows`, along the rows of a box (CVAT).
    """

    height: int
    width: int
    counts: tuple[int, ...]
    top: int = 0
    left: int = 0
    rows: bool = False

    def cover(self, height: int, width: int) -> Patch:
        if not self.rows and (self.height, self.width) != (height, width):
            raise TissError(f"a run-length mask of {self.width} × {self.height} on {width} × {height} pixels")
        if min(self.counts, default=0) < 0 or sum(self.counts) != self.height * self.width:
            raise TissError("a run-length mask whose runs do not fill it")
        if not 0 <= sum(self.counts) <= MAX_PIXELS or min(self.height, self.width) < 0:
            raise TissError("a run-length mask of an impossible size")
        inside = np.repeat(np.arange(len(self.counts)) % 2 == 1, self.counts)
        order: Literal["C", "F"] = "C" if self.rows else "F"
        return _cut(inside.reshape(self.height, self.width, order=order), self.top, self.left, height, width)


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
                pixels = np.asarray(np.atleast_3d(np.array(source)).any(axis=2))
        except (OSError, ValueError, SyntaxError) as error:
            raise TissError(f"a broken bitmap ({error})") from None
        return _cut(pixels, self.top, self.left, height, width)


def _cut(inside: np.ndarray, top: int, left: int, height: int, width: int) -> Patch:
    """Pixels laid at (top, left), without those beyond the image."""
    rows = slice(max(0, -top), max(0, height - top))
    columns = slice(max(0, -left), max(0, width - left))
    return Patch(max(0, top), max(0, left), inside[rows, columns])


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
