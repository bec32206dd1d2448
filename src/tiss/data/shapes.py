"""`shapes`: scenes that the package draws itself, so that a first run needs no download.

A class is a shape with a texture. Colours are drawn at random for every object and every background, so a
single pixel's colour says nothing about its class; the texture and the outline say everything. Objects vary
in size and angle, hide one another, and carry a border of one ignored pixel, like real masks.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from tiss.data.base import DATASETS, IGNORE, Dataset, Entry, Sample
from tiss.errors import TissError
from tiss.randomness import stream

Array = NDArray[np.float32]

UNIT = 64.0  # lengths below are in 64ths of the image's side, whatever its size
MOST_OBJECTS = 4
CHUNK = 64  # images drawn at a time: small enough to stay in the processor's cache


Outline = Callable[[Array, Array, Array], Array]
Texture = Callable[[Array, Array], NDArray[np.bool_]]


def _box(x: Array, y: Array, width: Array, height: Array) -> Array:
    return np.maximum(np.abs(x) - width, np.abs(y) - height)


def _triangle(x: Array, y: Array, r: Array) -> Array:
    slope = np.float32(np.sqrt(0.75))
    return np.maximum(np.maximum(y, slope * x - 0.5 * y), -slope * x - 0.5 * y) - 0.6 * r


# A class is an outline and a texture, of points (x, y) in the object's own frame, for an object of radius r.
# Outline: the signed distance to it, negative inside; not exactly Euclidean at corners, where one pixel more or
# less does not matter. Texture: True where the object shows its second colour.
CLASSES: dict[str, tuple[Outline, Texture]] = {
    "disc": (lambda x, y, r: np.hypot(x, y) - r, lambda x, y: np.mod(y, 6) < 3),
    "square": (
        lambda x, y, r: _box(x, y, 0.85 * r, 0.85 * r),
        lambda x, y: (np.mod(x, 8) < 4) ^ (np.mod(y, 8) < 4),
    ),
    "triangle": (_triangle, lambda x, y: np.hypot(np.mod(x, 8) - 4, np.mod(y, 8) - 4) < 2.6),
    "ring": (
        lambda x, y, r: np.abs(np.hypot(x, y) - 0.72 * r) - 0.33 * r,
        lambda x, y: np.cos(6 * np.arctan2(y, x)) > 0,
    ),
    "cross": (
        lambda x, y, r: np.minimum(_box(x, y, 1.05 * r, 0.42 * r), _box(x, y, 0.42 * r, 1.05 * r)),
        lambda x, y: np.zeros(x.shape, bool),
    ),
    "star": (
        lambda x, y, r: 0.8 * (np.hypot(x, y) - r * (0.95 + 0.22 * np.cos(5 * np.arctan2(y, x)))),
        lambda x, y: np.mod(np.hypot(x, y), 6) < 3,
    ),
    "moon": (
        lambda x, y, r: np.maximum(np.hypot(x, y) - 1.1 * r, 0.75 * r - np.hypot(x - 0.8 * r, y)),
        lambda x, y: np.mod(y + np.abs(np.mod(x, 8) - 4), 6) < 3,
    ),
    "bar": (lambda x, y, r: _box(x, y, 1.3 * r, 0.5 * r), lambda x, y: np.mod(x, 7) < 2.5),
}


@DATASETS.register("shapes")
class Shapes(Dataset):
    """Drawn scenes with eight classes, deterministic by `seed`; each split is drawn on first use.

    Image i of a split depends on (seed, split, i) and `size` alone: a smaller set is a larger one's start.
    """

    name = "shapes"
    classes = tuple(CLASSES)
    default_task = "4-2"
    default_crop = 64

    def __init__(
        self, root: str | None = None, seed: int = 0, size: int = 64, train: int = 1200, test: int = 300
    ) -> None:
        if root is not None:
            raise TissError("shapes is drawn in memory and has no folder: leave it out", setting="data.root")
        self.seed = seed
        self.size = size
        self._counts = {"train": train, "test": test}

    def ids(self, split: str) -> list[str]:
        return [f"{split}-{index:05d}" for index in range(self._count(split))]

    def read(self, split: str, id: str) -> Sample:
        prefix, _, number = id.rpartition("-")
        if prefix != split or not number.isdigit() or int(number) >= self._count(split):
            raise TissError(f"shapes has no image {id!r} in its split {split!r}")
        image, label = (torch.from_numpy(array[int(number)].copy()) for array in self.arrays(split))
        return Sample(image, label, id)

    def entries(self, split: str) -> dict[str, Entry]:
        return dict(zip(self.ids(split), map(Entry.of, self.arrays(split)[1]), strict=True))

    def arrays(self, split: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """All images of a split: images N × 3 × H × W and labels N × H × W, drawn on first use."""
        return draw(self.seed, split, self._count(split), self.size)

    def _count(self, split: str) -> int:
        if split not in self._counts:
            raise TissError(f"shapes has no split {split!r}: choose train or test")
        return self._counts[split]


@lru_cache(maxsize=4)  # a grid or a report opens the same data set once for every run
def draw(seed: int, split: str, count: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Draws `count` scenes: uint8 images N × 3 × size × size and labels N × size × size, both read-only."""
    images = np.empty((count, 3, size, size), np.uint8)
    labels = np.empty((count, size, size), np.uint8)
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        # always a full chunk of numbers: an image must not depend on how many follow it
        rng = stream(seed, "shapes", split, start)
        image, label = _draw_chunk(rng, size)
        images[start:stop] = np.rint(255 * image[: stop - start]).astype(np.uint8)
        labels[start:stop] = label[: stop - start]
    images.flags.writeable = labels.flags.writeable = False
    return images, labels


def _draw_chunk(rng: np.random.Generator, size: int) -> tuple[Array, NDArray[np.uint8]]:
    backdrop = rng.random((CHUNK, 3), np.float32)
    image = _background(rng, backdrop, size)
    label = np.zeros((CHUNK, size, size), np.uint8)
    objects = rng.integers(1, MOST_OBJECTS + 1, CHUNK)
    for layer in range(MOST_OBJECTS):
        kinds = rng.integers(0, len(CLASSES), CHUNK)
        numbers = rng.random((CHUNK, 4), np.float32)  # radius, centre x, centre y, angle
        first = _contrasting(rng, backdrop, backdrop)
        second = _contrasting(rng, backdrop, first)
        for kind, (outline, texture) in enumerate(CLASSES.values()):
            rows = np.flatnonzero((kinds == kind) & (layer < objects))
            if rows.size:
                distance, cover, second_colour = _cover(numbers[rows], outline, texture, size)
                colour = np.where(second_colour, second[rows, :, None, None], first[rows, :, None, None])
                image[rows] += cover * (colour - image[rows])
                painted = label[rows]
                painted[(distance > 0) & (distance <= 1)] = IGNORE
                painted[distance <= 0] = kind + 1
                label[rows] = painted
    noise = rng.normal(0, 0.02, image.shape).astype(np.float32)
    return np.clip(image + noise, 0, 1), label


def _grid(size: int) -> tuple[Array, Array]:
    """Coordinates of the pixels' centres in 64ths of the side, each size × size."""
    line = ((np.arange(size) + 0.5) * UNIT / size).astype(np.float32)
    x, y = np.meshgrid(line, line)
    return x, y


def _background(rng: np.random.Generator, backdrop: Array, size: int) -> Array:
    """Soft waves of two similar colours in a random direction, N × 3 × size × size."""
    x, y = _grid(size)
    numbers = rng.random((CHUNK, 5, 1, 1), np.float32)
    angle, period = np.pi * numbers[:, 0], 5 + 11 * numbers[:, 1]
    along = x * np.cos(angle) + y * np.sin(angle)
    across = y * np.cos(angle) - x * np.sin(angle)
    bend = 3 * np.sin(across / (4 + 6 * numbers[:, 2]))
    wave = np.sin(2 * np.pi * (along + bend) / period + 6 * numbers[:, 3])  # N × H × W, in [-1, 1]
    tint = (0.24 * rng.random((CHUNK, 3), np.float32) - 0.12)[:, :, None, None]
    slope = (x - y) / UNIT * (0.3 * numbers[:, 4] - 0.15)
    return backdrop[:, :, None, None] + tint * wave[:, None] + slope[:, None]


def _contrasting(rng: np.random.Generator, one: Array, other: Array, tries: int = 12) -> Array:
    """A random colour for each row, N × 3: of several, one that is far from both given colours."""
    candidates = rng.random((len(one), tries, 3), np.float32)
    distance = np.minimum(*(np.square(candidates - colour[:, None]).sum(-1) for colour in (one, other)))
    # far enough is enough: the farthest of all would nearly always be a corner of the colour cube
    chosen = np.argmax(np.minimum(distance, 0.35), axis=1)
    return candidates[np.arange(len(one)), chosen]


def _cover(
    numbers: Array, outline: Outline, texture: Texture, size: int
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """For objects of N × 4 numbers: distance from the outline in pixels N × H × W, cover and texture N × 1 × H × W."""
    radius, centre_x, centre_y, turn = (column[:, None, None] for column in numbers.T)
    radius = 11 + 8 * radius
    angle = (turn - 0.5) * np.float32(np.pi / 3)
    x, y = _grid(size)
    dx, dy = x - (8 + 48 * centre_x), y - (8 + 48 * centre_y)
    u, v = dx * np.cos(angle) + dy * np.sin(angle), dy * np.cos(angle) - dx * np.sin(angle)
    distance = outline(u, v, radius) * (size / UNIT)
    return distance, np.clip(0.5 - distance, 0, 1)[:, None], texture(u, v)[:, None]  # soft edges
