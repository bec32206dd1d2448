"""One table over all tasks of a data set: how each method ends, on all classes and on the new ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiss.report.table import Cell, Column, Row, Table
from tools.results.kept import Block, compared

FEW = 3  # tasks from which on a table of them is worth its place


def tasks_tables(
    found: Iterable[Block], parts: Sequence[str] = ("new", "all"), complete: bool = False
) -> list[Table]:
    """A table for every data set and network that was run on three tasks or more, on the test set.

    `complete` leaves out methods that were not run on each of them.
    """
    networks: dict[tuple[str, str, str, str], list[Block]] = {}
    for block in compared(found):
        if not block.experiment.holdout:
            key = (block.title, block.experiment.protocol, block.encoder, block.decoder)
            networks.setdefault(key, []).append(block)
    return [tasks_table(members, parts, complete) for members in networks.values() if len(members) >= FEW]


def tasks_table(members: Sequence[Block], parts: Sequence[str], complete: bool) -> Table:
    """Method × task; a method's default settings, as in the claims."""
    places = [(block, part) for block in members for part in parts]
    columns = [Column(part, f"{block.experiment.task} {block.experiment.setup}") for block, part in places]
    methods = dict.fromkeys(
        series.method for block in members for series in block.experiment.series if not series.at_once
    )
    rows = []
    for method in methods:
        shown = [series for block in members if (series := block.series(method)) is not None]
        cells: list[Cell] = []
        for block, part in places:
            series = block.series(method)
            cells.append(None if series is None else block.last(series, part))
        if not complete or None not in cells:
            rows.append(Row((shown[0].label,), tuple(cells)))
    first = members[0]
    if first.joint is not None:
        bound = tuple(first.last(first.joint, "all") if part == "all" else None for _, part in places)
        rows.append(Row((first.joint.label,), bound, None, rule=True))
    title = f"{first.title}, {first.encoder}: mIoU in % after the last step; pictures of {first.source}"
    return Table(title, ("method",), tuple(columns), tuple(rows))
