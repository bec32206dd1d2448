"""Colours of classes and methods: the same everywhere, told apart by colour-blind readers and in print."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiss.palette import Colour, class_colours
from tiss.scenarios.scenario import Scenario

Dashes = tuple[float, ...]  # on and off, in line widths; none: a solid line
SOLID: Dashes = ()
DASHED: Dashes = (4, 1.5)
DOTTED: Dashes = (1, 1.2)
MIXED: Dashes = (6, 1.5, 1, 1.5)
LEVEL: Dashes = (5, 2)
Marker = str | tuple[int, int, int]  # a letter, or sides, kind and angle of a polygon or star


@dataclass(frozen=True)
class MethodStyle:
    """How a method is drawn: colour, marker and line, so that colour is never the only difference."""

    colour: str
    marker: Marker
    dashes: Dashes = SOLID
    filled: bool = True

    @property
    def line(self) -> str | tuple[int, Dashes]:
        """The line style in matplotlib's words."""
        return (0, self.dashes) if self.dashes else "solid"

    @property
    def face(self) -> str:
        """What the marker is filled with."""
        return self.colour if self.filled else "none"


# Okabe and Ito's colours without black and yellow, which are lost on a dark or a white page, and three more. No two
# methods share a marker, and those of one line differ in colour to colour-blind readers too. What MiB is given in
# addition is dashed, descendants of others are dotted or mixed.
STYLES: dict[str, MethodStyle] = {
    "ft": MethodStyle("#d55e00", "v"),
    "lwf": MethodStyle("#e69f00", "<"),
    "ilt": MethodStyle("#cc79a7", ">"),
    "mib": MethodStyle("#0072b2", "s"),
    "mib+frozenbn": MethodStyle("#0072b2", "p", DASHED),
    "mib+l1": MethodStyle("#e69f00", "h", DASHED),
    "mib+l2": MethodStyle("#cc79a7", "d", DASHED),
    "mib+cd": MethodStyle("#56b4e9", "*", DASHED),
    "mib+ct": MethodStyle("#d55e00", "X", DASHED),
    "plop": MethodStyle("#56b4e9", "D"),
    "ploplong": MethodStyle("#56b4e9", "8", DOTTED),
    "sdr": MethodStyle("#009e73", "H", MIXED),
    "sdr+mib": MethodStyle("#0072b2", "+", MIXED),
    "tiss": MethodStyle("#009e73", "o"),
    "frozen": MethodStyle("#8c6d31", "P"),
    "recall": MethodStyle("#9b2d6f", "^"),
    "offline": MethodStyle("#7f7f7f", "x", LEVEL),
}
# of methods from outside: colours that no method above has, with markers that differ from each other
SPARE: tuple[MethodStyle, ...] = (
    MethodStyle("#e0559b", (4, 1, 0), MIXED),
    MethodStyle("#1b9e9e", (5, 0, 180), DOTTED),
    MethodStyle("#a3a300", (3, 1, 0), MIXED),
    MethodStyle("#b15928", (6, 1, 0), DOTTED),
    MethodStyle("#6f86b8", (4, 1, 45), MIXED),
    MethodStyle("#8a5a83", (7, 0, 0), DOTTED),
    MethodStyle("#c76b6b", (8, 1, 0), MIXED),
    MethodStyle("#4f9a4f", (3, 1, 180), DOTTED),
)
LINES: tuple[Dashes, ...] = (DOTTED, DASHED, MIXED, SOLID)  # of further series of one method
MARKERS: tuple[Marker, ...] = ("o", "s", "^", "D", "v")  # of those beyond as many


def method_styles(methods: Sequence[str]) -> list[MethodStyle]:
    """A style for each of `methods`: a built-in one's own, in every figure.

    Another's comes from what is left, by its name, so that it too is the same in every figure, unless two of one figure
    ask for the same. A method named again (other settings, another encoder) keeps its colour, with hollow markers and
    another line.
    """
    given = dict(STYLES)
    free = list(SPARE)
    for method in sorted(set(methods) - set(STYLES)):
        wanted = SPARE[zlib.crc32(method.encode()) % len(SPARE)]
        given[method] = wanted if wanted in free or not free else free[0]
        free = [one for one in free if one != given[method]]
    return [
        _variant(given[method], list(methods[:place]).count(method)) for place, method in enumerate(methods)
    ]


def _variant(style: MethodStyle, number: int) -> MethodStyle:
    """The `number`-th further series of a method; 0 is the method itself."""
    if number == 0:
        return style
    lines = [dashes for dashes in LINES if dashes != style.dashes]
    markers = [style.marker, *(marker for marker in MARKERS if marker != style.marker)]
    marker = markers[(number - 1) // len(lines) % len(markers)]
    return replace(style, marker=marker, dashes=lines[(number - 1) % len(lines)], filled=False)


def channel_colours(scenario: Scenario) -> list[Colour]:
    """RGB of every channel of a scenario: the data set's customary colours where it has them.

    A class keeps its colour whatever the order in which a task brings it.
    """
    by_value = scenario.dataset.colours() or class_colours(len(scenario.dataset.classes) + 1)
    values = [0, *(value for group in scenario.values for value in group)]
    return [by_value[value] for value in values]
