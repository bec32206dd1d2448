"""The paper's tables with our rows in them: the same columns, and never a rank across unlike averages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiss.data.base import DATASETS
from tiss.evaluation.scores import Scores, mean
from tiss.report.paper import (
    Block,
    Published,
    blocks_of,
    caption_of,
    dataset_of,
    notes_on,
    rows_of,
    table_names,
)
from tiss.report.runs import Experiment, Series, Value
from tiss.report.sizes import beside_the_paper
from tiss.report.table import OURS, Cell, Column, Row, Table
from tiss.report.tables import AVERAGES

HEADS = ("method", "average", "source", "architecture", "backbone")
IN_WORDS = {"with b": AVERAGES["with_background"], "without b": AVERAGES["without_background"]}
SHORT = {
    "aero": "aeroplane",
    "bike": "bicycle",
    "table": "diningtable",
    "mbike": "motorbike",
    "plant": "pottedplant",
    "tv": "tvmonitor",
}
# tables of the paper's own rows alone whose columns agree with one another: all rows share one average, whichever it is
CONSISTENT = ("ablation",)
RANKED = {
    "ablation": "Which average these rows share does not show, but they share one: their columns agree throughout.",
    "ade-base": "Rows are not ranked: those of ViT-small contradict their own columns; no common average is certain.",
    "swin": "Rows are not ranked: MiB with Swin has 38.2 in all, 38.5 by its columns; no common average is certain.",
}


def fitting_tables(experiments: Iterable[Experiment]) -> list[str]:
    """The paper's tables in which any of these experiments has a place."""
    known = list(experiments)
    return [name for name in table_names() if any(_block(name, experiment) for experiment in known)]


def paper_table(name: str, experiments: Sequence[Experiment] = ()) -> Table:
    """One of the paper's tables; with runs, only the blocks that they have a place in, and our rows below.

    Every run of ours gives a row without and one with the background, where that is a class.
    """
    places = [
        (experiment, block) for experiment in experiments if (block := _block(name, experiment)) is not None
    ]
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
    rows = [_their_row(row, blocks, index) for index, row in enumerate(theirs)]
    rows += _our_rows(places, blocks)
    notes = (
        "b: the background. Best and second are marked among rows of one average; a single class's among all.",
        *([RANKED[name]] if name in RANKED else []),
        *beside_the_paper(experiment for experiment, _ in places),
        *notes_on(theirs, blocks),
    )
    title = f"The paper's table {name}: {caption_of(name)}, mIoU in %"
    facts = {"table": f"paper {name}", "data": dataset_of(name)}
    return Table(title, HEADS, columns, tuple(rows), notes, facts)


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
    for task, setup in blocks_of(name):
        if task == experiment.task and setup in (experiment.setup, "unstated"):
            return task, setup
    return None


def _their_row(row: Published, blocks: dict[Block, list[str]], index: int) -> Row:
    cells: list[Cell] = []
    for (task, setup), groups in blocks.items():
        figures = [row.figures.get((task, setup, group)) for group in groups]
        cells += [None if figure is None else Value(figure) for figure in figures]
    known = row.average in ("with b", "without b") or row.table in CONSISTENT
    family = None if row.method == "offline" else row.average if known else f"{row.average} {index}"
    labels = (row.method, row.average, row.source, row.architecture, row.backbone)
    facts = {"average": IN_WORDS.get(row.average, row.average), "seeds": ""}  # how many is not known
    return Row(labels, tuple(cells), family, facts=facts)


def _our_rows(places: Sequence[tuple[Experiment, Block]], blocks: dict[Block, list[str]]) -> list[Row]:
    """Our rows: runs of one method and architecture share a row over all tasks."""
    found: dict[tuple[str, ...], dict[Block, Series]] = {}
    background: dict[tuple[str, ...], bool] = {}
    for experiment, block in places:
        for series in experiment.series:
            values = series.first.values
            label = series.name + (
                "" if experiment.protocol == "paper" else f", protocol {experiment.protocol}"
            )
            key = (label, str(values.get("decoder") or ""), str(values.get("encoder") or ""))
            found.setdefault(key, {})[block] = series
            background[key] = experiment.has_background
    rows: list[Row] = []
    for (label, decoder, encoder), series_of in found.items():
        for average in ("without b", "with b") if background[label, decoder, encoder] else ("without b",):
            cells: list[Cell] = []
            for block, groups in blocks.items():
                cells += [_our_cell(series_of.get(block), group, average) for group in groups]
            ranked = None if any(series.at_once for series in series_of.values()) else average
            first = not rows
            labels = (label, average, OURS, decoder, encoder)
            rows.append(Row(labels, tuple(cells), ranked, first, {"average": IN_WORDS[average]}))
    return rows


def _our_cell(series: Series | None, group: str, average: str) -> Cell:
    named = group != "all" and not group[0].isdigit()
    if series is None or (named and average == "with b"):  # a class's IoU stands in the row above
        return None
    return series.value(-1, lambda scores: group_mean(scores, group, average == "with b"))


def group_mean(scores: Scores, group: str, background: bool) -> float | None:
    """The mean IoU of one of the paper's columns: "all", "16-20", "20", or a class's (shortened) name.

    With the background, it counts in the columns that begin with class 1, as `old` and `all` do.
    """
    names = list(scores.iou)
    if not group[0].isdigit() and group != "all":
        return scores.iou.get(SHORT.get(group, group))
    first, last = (1, len(names) - 1) if group == "all" else _range(group)
    chosen = names[first : last + 1]
    if background and first == 1:
        chosen = [names[0], *chosen]
    return mean(scores.iou[name] for name in chosen)


def _range(group: str) -> tuple[int, int]:
    first, _, last = group.partition("-")
    return int(first), int(last or first)
