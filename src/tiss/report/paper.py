"""The paper's tables, shipped with the package, with our rows in them; unlike averages are never ranked together."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tiss.data.base import DATASETS
from tiss.errors import TissError, suggest
from tiss.evaluation.scores import Scores, mean
from tiss.files import read_text, read_yaml
from tiss.report.runs import Experiment, Series, Value
from tiss.report.tables import OURS, Cell, Column, Row, Table, median_notes

HEADS = ("method", "average", "source", "architecture", "backbone")
IN_WORDS = {"with b": "with background", "without b": "without background"}
Block = tuple[str, str]  # task and setup


@dataclass(frozen=True)
class Published:
    """One row of one of the paper's tables: its values by (task, setup, column)."""

    figures: dict[tuple[str, str, str], float]
    table: str
    method: str
    source: str
    architecture: str
    backbone: str

    @property
    def averaging(self) -> dict[str, str]:
        """How its means were made, as far as it can be derived ("average"), and from what ("why")."""
        rules = facts()["averages"]
        return next(
            rule for rule in rules if all(getattr(self, key) in rule[key] for key in FITS & set(rule))
        )

    @property
    def run(self) -> tuple[str, ...]:
        return self.method, self.source, self.architecture, self.backbone, dataset_of(self.table)


FITS = {"table", "source", "method", "backbone"}


@cache
def facts() -> dict[str, Any]:
    """What paper.yaml says about the tables."""
    return dict(read_yaml(Path(__file__).with_name("paper.yaml")))


@cache
def published() -> dict[str, list[Published]]:
    """Every row of every results table of the paper, in its order, by the table's name."""
    rows: dict[tuple[str, ...], dict[tuple[str, str, str], float]] = {}
    text = read_text(Path(__file__).with_name("paper_results.csv"))
    for line in csv.DictReader(text.splitlines()):
        key = tuple(line[name] for name in ("table", "method", "source", "architecture", "backbone"))
        rows.setdefault(key, {})[line["task"], line["setup"], line["group"]] = float(line["miou"])
    tables: dict[str, list[Published]] = {}
    for key, figures in rows.items():
        tables.setdefault(key[0], []).append(Published(figures, *key))
    return tables


def dataset_of(table: str) -> str:
    """The data set, by our name, that a table is about."""
    if table in ("voc", "cityscapes"):
        return table
    return "voc" if table[0].isdigit() else "ade20k"


def blocks_of(table: str) -> dict[Block, list[str]]:
    """The columns of a table by (task, setup), in the order of the row that has most of them."""
    if table not in published():
        raise TissError(suggest(table, [*published()], "table of the paper"))
    blocks: dict[Block, list[str]] = {}
    for row in published()[table]:
        for block in dict.fromkeys(key[:2] for key in row.figures):
            groups = [key[2] for key in row.figures if key[:2] == block]
            blocks[block] = max(blocks.get(block, []), groups, key=len)
    return blocks


def caption_of(table: str) -> str:
    """What a table is about, in words."""
    task, setup = next(iter(blocks_of(table)))
    return str(facts()["captions"].get(table, f"Pascal VOC 2012, {task} {setup}, class by class"))


def fitting_tables(experiments: Sequence[Experiment]) -> list[str]:
    """The paper's tables in which any of these experiments has a place."""
    return [name for name in published() if any(_block(name, experiment) for experiment in experiments)]


def paper_table(name: str, experiments: Sequence[Experiment] = ()) -> Table:
    """One of the paper's tables; with runs, only the blocks that they have a place in, and our rows below.

    Every run of ours gives a row without and one with the background, where that is a class.
    """
    blocks = blocks_of(name)
    places = [(one, block) for one in experiments if (block := _block(name, one)) is not None]
    if places:
        wanted = {block for _, block in places}
        blocks = {block: groups for block, groups in blocks.items() if block in wanted}
    cells = [(*block, group) for block, groups in blocks.items() for group in groups]
    columns = tuple(
        Column(
            group,
            f"{task} {setup}",
            everyone=group != "all" and "-" not in group,  # one class: no average is involved
            facts={"task": task, "setup": setup},
        )
        for task, setup, group in cells
    )
    theirs = [row for row in published()[name] if any(key[:2] in blocks for key in row.figures)]
    rows = []
    for index, row in enumerate(theirs):
        average = row.averaging["average"]
        comparable = average in IN_WORDS or name in facts()["ranked"]
        family = None if row.method == "offline" else average if comparable else f"{average} {index}"
        figures = [row.figures.get(key) for key in cells]
        values = tuple(None if figure is None else Value(figure) for figure in figures)
        labels = (row.method, average, row.source, row.architecture, row.backbone)
        rows.append(
            Row(labels, values, family, facts={"average": IN_WORDS.get(average, average), "seeds": ""})
        )
    ours = sizes_of(experiment for experiment, _ in places)
    notes = [
        "b: the background. Best and second are marked among rows of one average; a single class's among all.",
        *([facts()["ranking"][name]] if name in facts()["ranking"] else []),
        *([f"Ours: {ours}; the paper: original size, crops of 512."] if ours else []),
        *median_notes(series for experiment, _ in places for series in experiment.series),
        *notes_on(theirs, blocks),
    ]
    title = f"The paper's table {name}: {caption_of(name)}, mIoU in %"
    about = {"table": f"paper {name}", "data": dataset_of(name)}
    return Table(title, HEADS, columns, (*rows, *_our_rows(places, cells)), tuple(notes), about)


def _block(name: str, experiment: Experiment) -> Block | None:
    """Where an experiment belongs in a table; held-out scores and other class orders belong nowhere."""
    if experiment.data != dataset_of(name) or experiment.holdout or experiment.trial:
        return None
    if tuple(experiment.classes[1:]) != tuple(getattr(DATASETS.get(experiment.data), "classes", ())):
        return None
    setups = (experiment.setup, "unstated")
    return next((b for b in blocks_of(name) if b[0] == experiment.task and b[1] in setups), None)


def notes_on(rows: Sequence[Published], blocks: Iterable[Block]) -> list[str]:
    """The averages of these rows, and cells that contradict their row or another of the paper's tables."""
    shown, sources = set(blocks), {(row.method, row.source) for row in rows}
    notes = [row.averaging["why"] for row in rows]
    for fault in facts()["faults"]:
        if (fault["task"], fault["setup"]) in shown and (fault["method"], fault["source"]) in sources:
            notes.append(fault["text"])
    known = [row for table in published().values() for row in table]
    for row in rows:
        same = [one for one in known if one.run == row.run]
        for key, figure in row.figures.items():
            values = {one.table: one.figures.get(key, figure) for one in same}
            others = [f"{value} in {table}" for table, value in values.items() if value != figure]
            if others and key[:2] in shown:
                where = f"{row.method} {row.backbone} ({row.source}) {key[0]} {key[1]}, {key[2]}"
                notes.append(f"{where}: {figure} here, {' and '.join(sorted(others))}.")
    return list(dict.fromkeys(notes))


def _our_rows(places: Sequence[tuple[Experiment, Block]], cells: Sequence[tuple[str, str, str]]) -> list[Row]:
    """Our rows: runs of one method and architecture share a row over all tasks."""
    found: dict[tuple[str, str, str], dict[Block, Series]] = {}
    for experiment, block in places:
        protocol = "" if experiment.protocol == "paper" else f", protocol {experiment.protocol}"
        for series in experiment.series:
            key = (series.name + protocol, series.first.decoder, series.first.encoder)
            found.setdefault(key, {})[block] = series
    rows: list[Row] = []
    for (label, *network), series_of in found.items():
        background = any(series.first.values["has_background"] for series in series_of.values())
        ranked = not any(series.at_once for series in series_of.values())
        for average in ("without b", "with b") if background else ("without b",):
            values: list[Cell] = []
            for task, setup, group in cells:
                one, with_b = series_of.get((task, setup)), average == "with b"
                if with_b and group != "all" and not group[0].isdigit():
                    one = None  # a class's IoU is in the row above
                means = [group_mean(run.steps[-1], group, with_b) for run in one.results] if one else []
                values.append(Value.of(means))
            labels = (label, average, OURS, *network)
            family = average if ranked else None
            rows.append(Row(labels, tuple(values), family, not rows, {"average": IN_WORDS[average]}))
    return rows


def group_mean(scores: Scores, group: str, background: bool) -> float | None:
    """The mean IoU of one of the paper's columns: "all", "16-20", "20", or a class's (shortened) name.

    With the background, it counts in the columns that begin with class 1, as `old` and `all` do.
    """
    values = list(scores.iou.values())
    if group != "all" and not group[0].isdigit():
        return scores.iou.get(facts()["short"].get(group, group))
    first, _, last = ("1", "", str(len(values) - 1)) if group == "all" else group.partition("-")
    return mean(values[0 if background and first == "1" else int(first) : int(last or first) + 1])


def sizes_of(experiments: Iterable[Experiment]) -> str:
    """The image sizes of all runs, each said once; empty where no run kept its settings."""
    texts = []
    for series in (series for experiment in experiments for series in experiment.series):
        names = ("data.resize", "data.crop", "eval.size")
        resize, crop, tested = (series.first.settings.get(name) for name in names)
        size = f"resized to {resize}" if resize else "at their own size"
        test = f", tested at {tested}" if tested not in (None, crop) else ""
        texts += [] if crop is None else [f"images {size}, crops of {crop}{test}"]
    return " or ".join(dict.fromkeys(texts))
