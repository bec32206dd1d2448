"""The paper's tables, shipped with the package, with our rows in them; unlike averages are never ranked together."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from tiss.data.base import DATASETS
from tiss.errors import TissError, suggest
from tiss.evaluation.scores import Scores, mean
from tiss.report.runs import Experiment, Series, Value
from tiss.report.tables import AVERAGES, OURS, Cell, Column, Row, Table, median_notes

HEADS = ("method", "average", "source", "architecture", "backbone")
IN_WORDS = {"with b": AVERAGES["with_background"], "without b": AVERAGES["without_background"]}
Block = tuple[str, str]  # task and setup


@dataclass(frozen=True)
class Published:
    """One row of one of the paper's tables: its values by (task, setup, column)."""

    table: str
    method: str
    source: str
    architecture: str
    backbone: str
    figures: dict[tuple[str, str, str], float]

    @property
    def averaging(self) -> dict[str, Any]:
        """How its means were made, as far as it can be derived ("average"), and from what ("why")."""
        keys = ("table", "source", "method", "backbone")
        return next(
            rule
            for rule in facts()["averages"]
            if all(getattr(self, key) in rule[key] for key in keys if key in rule)
        )

    @property
    def average(self) -> str:
        return str(self.averaging["average"])

    def differs(self, other: Published, key: tuple[str, str, str]) -> bool:
        """Whether another table has a different value for the same cell of the same run."""
        names = ("method", "source", "architecture", "backbone")
        same_run = all(getattr(self, name) == getattr(other, name) for name in names)
        same_run &= dataset_of(self.table) == dataset_of(other.table) and self.table != other.table
        return same_run and other.figures.get(key, self.figures[key]) != self.figures[key]


def _read(name: str) -> str:
    return resources.files("tiss.report").joinpath(name).read_text(encoding="utf-8")


@cache
def facts() -> dict[str, Any]:
    """What paper.yaml says about the tables."""
    return dict(yaml.safe_load(_read("paper.yaml")))


@cache
def published() -> tuple[Published, ...]:
    """Every row of every results table of the paper, in its order."""
    rows: dict[tuple[str, str, str, str, str], dict[tuple[str, str, str], float]] = {}
    for line in csv.DictReader(_read("paper_results.csv").splitlines()):
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
    """The columns of a table by (task, setup), in the order of the row that has most of them."""
    blocks: dict[Block, list[str]] = {}
    for row in rows_of(table):
        for block in dict.fromkeys((task, setup) for task, setup, _ in row.figures):
            groups = [group for task, setup, group in row.figures if (task, setup) == block]
            blocks[block] = max(blocks.get(block, []), groups, key=len)
    return blocks


def caption_of(table: str) -> str:
    """What a table is about, in words."""
    if table in facts()["captions"]:
        return str(facts()["captions"][table])
    task, setup = next(iter(blocks_of(table)))
    return f"Pascal VOC 2012, {task} {setup}, class by class"


def fitting_tables(experiments: Iterable[Experiment]) -> list[str]:
    """The paper's tables in which any of these experiments has a place."""
    known = list(experiments)
    return [name for name in table_names() if any(_block(name, experiment) for experiment in known)]


def paper_table(name: str, experiments: Sequence[Experiment] = ()) -> Table:
    """One of the paper's tables; with runs, only the blocks that they have a place in, and our rows below.

    Every run of ours gives a row without and one with the background, where that is a class.
    """
    places = [(one, block) for one in experiments if (block := _block(name, one)) is not None]
    blocks = blocks_of(name)
    if places:
        wanted = {block for _, block in places}
        blocks = {block: groups for block, groups in blocks.items() if block in wanted}
    columns = tuple(
        Column(group, f"{task} {setup}", everyone=is_class(group), facts={"task": task, "setup": setup})
        for (task, setup), groups in blocks.items()
        for group in groups
    )
    theirs = [row for row in rows_of(name) if any((task, setup) in blocks for task, setup, _ in row.figures)]
    ours = sizes_of(experiment for experiment, _ in places)
    notes = [
        "b: the background. Best and second are marked among rows of one average; a single class's among all.",
        *([facts()["ranking"][name]] if name in facts()["ranking"] else []),
        *([f"Ours: {ours}; the paper: original size, crops of 512."] if ours else []),
        *median_notes(series for experiment, _ in places for series in experiment.series),
        *notes_on(theirs, blocks),
    ]
    rows = [_their_row(row, blocks, index) for index, row in enumerate(theirs)] + _our_rows(places, blocks)
    title = f"The paper's table {name}: {caption_of(name)}, mIoU in %"
    table_facts = {"table": f"paper {name}", "data": dataset_of(name)}
    return Table(title, HEADS, columns, tuple(rows), tuple(notes), table_facts)


def is_class(group: str) -> bool:
    """Whether a column is one class, so that no average is involved."""
    return group != "all" and "-" not in group


def _block(name: str, experiment: Experiment) -> Block | None:
    """Where an experiment belongs in a table; held-out scores and other class orders belong nowhere."""
    if experiment.data != dataset_of(name) or experiment.holdout:
        return None
    official = DATASETS.get(experiment.data)
    if tuple(experiment.classes[1:]) != tuple(getattr(official, "classes", ())):
        return None
    fitting = (
        b for b in blocks_of(name) if b[0] == experiment.task and b[1] in (experiment.setup, "unstated")
    )
    return next(fitting, None)


def notes_on(rows: Sequence[Published], blocks: Iterable[Block]) -> list[str]:
    """The averages of these rows, and cells that contradict their row or another of the paper's tables."""
    shown, sources = set(blocks), {(row.method, row.source) for row in rows}
    notes = dict.fromkeys(row.averaging["why"] for row in rows)
    for fault in facts()["faults"]:
        if (fault["task"], fault["setup"]) in shown and (fault["method"], fault["source"]) in sources:
            notes[fault["text"]] = None
    for row in rows:
        for key, figure in row.figures.items():
            others = sorted({f"{o.figures[key]} in {o.table}" for o in published() if row.differs(o, key)})
            if others and key[:2] in shown:
                where = f"{row.method} {row.backbone} ({row.source}) {key[0]} {key[1]}, {key[2]}"
                notes[f"{where}: {figure} here, {' and '.join(others)}."] = None
    return list(notes)


def _their_row(row: Published, blocks: dict[Block, list[str]], index: int) -> Row:
    cells: list[Cell] = []
    for block, groups in blocks.items():
        figures = [row.figures.get((*block, group)) for group in groups]
        cells += [None if figure is None else Value(figure) for figure in figures]
    comparable = row.average in IN_WORDS or row.table in facts()["ranked"]
    family = None if row.method == "offline" else row.average if comparable else f"{row.average} {index}"
    labels = (row.method, row.average, row.source, row.architecture, row.backbone)
    return Row(
        labels, tuple(cells), family, facts={"average": IN_WORDS.get(row.average, row.average), "seeds": ""}
    )


def _our_rows(places: Sequence[tuple[Experiment, Block]], blocks: dict[Block, list[str]]) -> list[Row]:
    """Our rows: runs of one method and architecture share a row over all tasks."""
    found: dict[tuple[str, str, str], dict[Block, Series]] = {}
    for experiment, block in places:
        protocol = "" if experiment.protocol == "paper" else f", protocol {experiment.protocol}"
        for series in experiment.series:
            decoder, encoder = (str(series.first.values.get(key) or "") for key in ("decoder", "encoder"))
            found.setdefault((series.name + protocol, decoder, encoder), {})[block] = series
    rows: list[Row] = []
    for (label, decoder, encoder), series_of in found.items():
        background = any(series.first.values["has_background"] for series in series_of.values())
        for average in ("without b", "with b") if background else ("without b",):
            cells = [
                _our_cell(series_of.get(block), group, average == "with b")
                for block, groups in blocks.items()
                for group in groups
            ]
            ranked = None if any(series.at_once for series in series_of.values()) else average
            labels = (label, average, OURS, decoder, encoder)
            rows.append(Row(labels, tuple(cells), ranked, not rows, {"average": IN_WORDS[average]}))
    return rows


def _our_cell(series: Series | None, group: str, background: bool) -> Cell:
    named = group != "all" and not group[0].isdigit()
    if series is None or (named and background):  # a class's IoU is in the row above
        return None
    return series.value(-1, lambda scores: group_mean(scores, group, background))


def group_mean(scores: Scores, group: str, background: bool) -> float | None:
    """The mean IoU of one of the paper's columns: "all", "16-20", "20", or a class's (shortened) name.

    With the background, it counts in the columns that begin with class 1, as `old` and `all` do.
    """
    names = list(scores.iou)
    if group != "all" and not group[0].isdigit():
        return scores.iou.get(facts()["short"].get(group, group))
    first, _, last = ("1", "", str(len(names) - 1)) if group == "all" else group.partition("-")
    chosen = names[int(first) : int(last or first) + 1]
    return mean(scores.iou[name] for name in (names[:1] if background and first == "1" else []) + chosen)


def sizes_of(experiments: Iterable[Experiment]) -> str:
    """The image sizes of all runs, each said once; empty where no run kept its settings."""
    found = [_size(series) for experiment in experiments for series in experiment.series]
    return " or ".join(dict.fromkeys(text for text in found if text is not None))


def _size(series: Series) -> str | None:
    settings = series.first.settings
    resize, crop, tested = (settings.get(key) for key in ("data.resize", "data.crop", "eval.size"))
    if crop is None:
        return None
    text = f"images {f'resized to {resize}' if resize else 'at their own size'}, crops of {crop}"
    return text + (f", tested at {tested}" if tested not in (None, crop) else "")
