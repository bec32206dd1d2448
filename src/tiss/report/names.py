"""Where a class's name fits inside its region of a mask, so that colour is not all that tells classes apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiss.report.paper_tables import SHORT

LETTER = 0.62  # a letter's width, in heights of the text
FULL = 0.97  # share of the text's box that must be of the class
GROWTH = 1.25  # from one box that is tried to the next larger one
SHORTEST = 4  # letters of an abbreviation


@dataclass(frozen=True)
class Name:
    """A text and its centre, in shares of the picture's width and height."""

    text: str
    x: float
    y: float


def names_in(mask: NDArray[np.uint8], classes: Sequence[str], height: float) -> list[Name]:
    """Names for the regions of a mask H × W of channels, for text of `height`, a share of the picture's height.

    The background has none. A name that does not fit is shortened; where that does not fit either, there is none: the
    legend has it.
    """
    rows = max(1, round(height * len(mask)))
    found = []
    for channel in map(int, np.unique(mask)):
        if 0 < channel < len(classes):
            for text in _texts(classes[channel]):
                centre = _widest_place(mask == channel, rows, max(1, round(LETTER * len(text) * rows)))
                if centre is not None:
                    found.append(Name(text, centre[1] / mask.shape[1], centre[0] / mask.shape[0]))
                    break
    return found


def _texts(name: str) -> list[str]:
    """A name as it stands and in short, as the paper's tables have it or by its first letters.

    >>> _texts("pottedplant"), _texts("triangle"), _texts("cat")
    (['pottedplant', 'plant'], ['triangle', 'tria.'], ['cat'])
    """
    usual = {long: short for short, long in SHORT.items()}
    if name not in usual and len(name) <= SHORTEST + 1:
        return [name]
    return [name, usual.get(name, name[:SHORTEST] + ".")]


def _widest_place(inside: NDArray[np.bool_], rows: int, columns: int) -> tuple[float, float] | None:
    """Row and column of the centre of the largest box of these proportions that lies inside; None if none does."""
    sums = np.pad(inside.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    centre, factor = None, 1.0
    while True:
        h, w = round(rows * factor), round(columns * factor)
        if h > inside.shape[0] or w > inside.shape[1]:
            return centre
        covered = sums[h:, w:] - sums[:-h, w:] - sums[h:, :-w] + sums[:-h, :-w]
        places = np.argwhere(covered >= FULL * h * w)
        if not len(places):
            return centre
        row, column = places[len(places) // 2]  # one of them: their mean may lie outside of a bent region
        centre, factor = (row + h / 2, column + w / 2), factor * GROWTH
