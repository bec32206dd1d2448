"""Tables for programs: one CSV over all of them, a line a figure, every line complete in itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from tiss.report.runs import Value
from tiss.report.table import Row, Table

# `table` says which; `average` how a mean was made; `learnt` the step that brought a class
HEADS = (
    "table",
    "data",
    "task",
    "setup",
    "protocol",
    "holdout",
    "source",
    "method",
    "architecture",
    "backbone",
    "step",
    "average",
    "column",
    "learnt",
    "value",
    "deviation",
    "seeds",
)


def to_csv(tables: Iterable[Table]) -> str:
    """All figures of all tables under one head, with every digit; what does not apply to a line is empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, HEADS, restval="", lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for table in tables:
        for row in table.rows:
            writer.writerows(_lines(table, row))
    return stream.getvalue()


def _lines(table: Table, row: Row) -> Iterator[dict[str, str]]:
    """One line a figure; a cell without one has none."""
    labels = dict(zip(table.heads, row.labels, strict=True))
    for column, cell in zip(table.columns, row.cells, strict=True):
        if not isinstance(cell, Value):
            continue
        figure = {
            "column": column.name,
            "value": repr(cell.mean),
            "deviation": "" if cell.deviation is None else repr(cell.deviation),
            "seeds": str(cell.count),
        }
        yield {**table.facts, **labels, **figure, **column.facts, **row.facts}
