"""The paper's own figures, shipped with the package, and what is known about how they were averaged.

The rows of its tables do not share one way of averaging. Each row here says which it uses, as far as the
figures themselves show it: a mean with the background must not be ranked against one without it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from tiss.errors import TissError, suggest

Average = Literal["without b", "with b", "unclear", "not derivable"]

OWN = "TISS paper"
CAPTIONS = {
    "voc": "Pascal VOC 2012",
    "ade": "ADE20K",
    "ablation": "ADE20K, ablation",
    "ade-base": "ADE20K, ViT-small and ViT-base",
    "cityscapes": "Cityscapes",
    "swin": "ADE20K, SegFormer and Swin",
}

# what the figures themselves show, row by row; the order decides
EXPLAINED = {
    "MiB paper": "Rows from the MiB paper are without the background (b): their per-class means equal the headline.",
    "SDR paper": "Rows from the SDR paper are with b: their columns combine so.",
    "PLOP paper": "Rows from the PLOP paper are with b (on Cityscapes 15 old and 20 classes in all).",
    "FT": "FT with ViT-small is without b: its per-class mean equals the headline.",
    "TISS": "TISS on VOC is unclear: its per-class figures reach the headline only with a b of 89 to 94 IoU added, "
    "yet its headline columns combine as 15 and 5 of 20.",
    "MiB": "MiB with ViT-small on VOC cannot be derived: the headline would need a b of 113 to 196 IoU.",
    "MiB ResNet": "The paper's own MiB with ResNet-101 cannot be derived: the implied b is 20 to 102 IoU.",
    "MiB (frozen BN)": "MiB with frozen BN has no per-class figures; its columns combine as without b.",
    "offline": "Offline with ViT-small on VOC cannot be derived: the implied b is 40 to 78 IoU.",
    "ade": "The paper's own ADE20K rows do not show it: one class in 151 is lost in rounding.",
    "cityscapes": "The paper's own Cityscapes rows count 14 old classes and 19 in all, without b.",
}

Block = tuple[str, str]  # task and setup

# headline cells that contradict their own row: (task and setup, method, source, text)
FAULTS: tuple[tuple[Block, str, str, str], ...] = (
    (
        ("15-5", "disjoint"),
        "TISS",
        OWN,
        "TISS 15-5 disjoint, new classes: 61.7 in the headline, 65.6 from its per-class figures.",
    ),
    (
        ("15-1", "overlapped"),
        "MiB",
        OWN,
        "MiB ViT-small 15-1 overlapped, all: 60.4 published, 56.4 from its own 64.9 and 30.7; "
        "by the columns, TISS leads it by 15.7 there, not by 11.7.",
    ),
    (
        ("15-5", "disjoint"),
        "ILT",
        "MiB paper",
        "ILT 15-5 disjoint, old classes: 63.2 published, 67.1 from its per-class figures.",
    ),
    (
        ("100-10", "disjoint"),
        "FT",
        "MiB paper",
        "FT (MiB paper) 100-10, classes 101-150: 4.8 published, 3.3 from its own steps.",
    ),
)


@dataclass(frozen=True)
class Published:
    """One row of one of the paper's tables: its figures by (task, setup, column)."""

    table: str
    method: str
    source: str
    architecture: str
    backbone: str
    figures: dict[tuple[str, str, str], float]

    @property
    def average(self) -> Average:
        """How its means were made, as far as can be told."""
        if self.source != OWN:
            return "without b" if self.source == "MiB paper" else "with b"
        if self.table == "cityscapes":
            return "without b"
        if self.table in ("ade", "ablation", "ade-base", "swin"):
            return "not derivable"
        if self.method in ("FT", "MiB (frozen BN)"):
            return "without b"
        return "unclear" if self.method == "TISS" else "not derivable"

    @property
    def explanation(self) -> str:
        """Where that is known from."""
        if self.source != OWN:
            return EXPLAINED[self.source]
        if self.table == "cityscapes":
            return EXPLAINED["cityscapes"]
        if self.table in ("ade", "ablation", "ade-base", "swin"):
            return EXPLAINED["ade"]
        if self.method == "MiB" and self.backbone.startswith("ResNet"):
            return EXPLAINED["MiB ResNet"]
        return EXPLAINED[self.method]


@cache
def published() -> tuple[Published, ...]:
    """Every row of every results table of the paper, in its order."""
    text = resources.files("tiss.report").joinpath("paper_results.csv").read_text()
    rows: dict[tuple[str, str, str, str, str], dict[tuple[str, str, str], float]] = {}
    for line in csv.DictReader(text.splitlines()):
        key = (line["table"], line["method"], line["source"], line["architecture"], line["backbone"])
        rows.setdefault(key, {})[line["task"], line["setup"], line["group"]] = float(line["miou"])
    return tuple(Published(*key, figures) for key, figures in rows.items())


def table_names() -> list[str]:
    """The names of the paper's tables, as its labels have them."""
    return list(dict.fromkeys(row.table for row in published()))


def rows_of(table: str) -> list[Published]:
    """The rows of one table."""
    if table not in table_names():
        raise TissError(suggest(table, table_names(), "table of the paper"))
    return [row for row in published() if row.table == table]


def dataset_of(table: str) -> str:
    """The data set, by our name, that a table is about."""
    if table in ("voc", "cityscapes"):
        return table
    return "voc" if table[-1] in "do" and table[0].isdigit() else "ade20k"


def blocks_of(table: str) -> dict[Block, list[str]]:
    """The columns of a table by (task, setup), in the order of the row that has the most of them."""
    blocks: dict[Block, list[str]] = {}
    for row in rows_of(table):
        for block in dict.fromkeys((task, setup) for task, setup, _ in row.figures):
            groups = [group for task, setup, group in row.figures if (task, setup) == block]
            if len(groups) > len(blocks.get(block, [])):
                blocks[block] = groups
    return blocks


def caption_of(table: str) -> str:
    """What a table is about, in words."""
    if table in CAPTIONS:
        return CAPTIONS[table]
    task, setup = next(iter(blocks_of(table)))
    return f"Pascal VOC 2012, {task} {setup}, class by class"


def notes_on(rows: Sequence[Published], blocks: Iterable[Block]) -> list[str]:
    """What must be said beside these rows: their averages, and cells that contradict their row or a table."""
    shown = set(blocks)
    faults = [
        text
        for block, method, source, text in FAULTS
        if block in shown and any((row.method, row.source) == (method, source) for row in rows)
    ]
    return [*dict.fromkeys(row.explanation for row in rows), *faults, *disagreements(rows, shown)]


def disagreements(rows: Sequence[Published], blocks: Iterable[Block]) -> list[str]:
    """Cells of these rows that another of the paper's tables gives differently."""
    shown = set(blocks)
    found = []
    for row in rows:
        twins = [other for other in published() if _same_run(row, other)]
        for (task, setup, group), figure in row.figures.items():
            others = {
                f"{o.figures[task, setup, group]} in {o.table}"
                for o in twins
                if _differs(o, task, setup, group, figure)
            }
            if others and (task, setup) in shown:
                where = f"{row.method} {row.backbone} ({row.source}) {task} {setup}, {group}"
                found.append(f"{where}: {figure} here, {' and '.join(sorted(others))}.")
    return found


def _same_run(one: Published, other: Published) -> bool:
    names = ("method", "source", "architecture", "backbone")
    same = all(getattr(one, name) == getattr(other, name) for name in names)
    return same and dataset_of(one.table) == dataset_of(other.table) and one.table != other.table


def _differs(other: Published, task: str, setup: str, group: str, figure: float) -> bool:
    return other.figures.get((task, setup, group), figure) != figure
