"""How much of a batch's n × n similarities is made at a time."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

CHUNK_ELEMENTS = {
    "cpu": 1 << 20,
    "cuda": 1 << 24,
}  # what stays in the cache of a core; some tens of MB of a GPU


def chunks(tokens: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of images and of rows of N × n × D tokens whose similarities fit into the budget."""
    count, patches = tokens.shape[:2]
    budget = CHUNK_ELEMENTS.get(tokens.device.type, CHUNK_ELEMENTS["cpu"])
    images = max(1, budget // (patches * patches))
    rows = patches if images > 1 else max(1, min(patches, budget // patches))
    for image in range(0, count, images):
        for row in range(0, patches, rows):
            yield slice(image, image + images), slice(row, min(row + rows, patches))
