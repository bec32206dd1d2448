"""Colours of classes and methods: the same everywhere, told apart by colour-blind readers and in print."""

from __future__ import annotations

from collections.abc import Sequence

from tiss.palette import Colour, class_colours
from tiss.scenarios.scenario import Scenario

# Okabe and Ito's colours without yellow, which is lost on white paper; a marker of its own for each method
STYLES: dict[str, tuple[str, str]] = {
    "ft": ("#d55e00", "v"),
    "lwf": ("#e69f00", "<"),
    "ilt": ("#cc79a7", ">"),
    "mib": ("#0072b2", "s"),
    "plop": ("#56b4e9", "D"),
    "tiss": ("#009e73", "o"),
    "frozen": ("#8c6d31", "P"),
    "offline": ("#7f7f7f", "x"),
}
SPARE: tuple[tuple[str, str], ...] = (
    ("#6a3d9a", "^"),
    ("#b15928", "h"),
    ("#1b9e9e", "p"),
    ("#c51b7d", "X"),
    ("#4d4d4d", "d"),
    ("#a6761d", "8"),
    ("#3366cc", "*"),
    ("#99a800", "H"),
)


def method_styles(methods: Sequence[str]) -> list[tuple[str, str]]:
    """A colour and a marker for each of `methods`; those named twice, or not known, take a spare one."""
    spare = iter(SPARE * (1 + len(methods) // len(SPARE)))
    used: set[str] = set()
    styles = []
    for method in methods:
        known = method in STYLES and method not in used
        styles.append(STYLES[method] if known else next(spare))
        used.add(method)
    return styles


def channel_colours(scenario: Scenario) -> list[Colour]:
    """RGB of every channel of a scenario: the data set's customary colours where it has them.

    A class keeps its colour whatever the order in which a task brings it.
    """
    by_value = scenario.dataset.colours() or class_colours(len(scenario.dataset.classes) + 1)
    values = [0, *(value for group in scenario.values for value in group)]
    return [by_value[value] for value in values]
