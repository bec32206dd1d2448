"""Figures and names that others published, as CSV files."""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of `name`.csv, by column."""
    text = resources.files(__package__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def class_table(name: str) -> tuple[tuple[str, ...], list[tuple[int, int, int]]]:
    """Names of label values 1..K and colours of 0..K from `name`_classes.csv; 0 is black."""
    rows = read_table(f"{name}_classes")
    colours = [(int(row["red"]), int(row["green"]), int(row["blue"])) for row in rows]
    return tuple(row["name"] for row in rows), [(0, 0, 0), *colours]
