"""A table as data: columns, rows, marks for the best and the second; how it is written is another matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tiss.evaluation.scores import percent
from tiss.report.runs import Value

Mark = Literal["best", "second"]
Cell = Value | str | None
Facts = Mapping[str, str]  # what a line of the CSV says beside its figure, by that file's heads
OURS = "this package"  # the source of figures that are not the paper's


@dataclass(frozen=True)
class Column:
    """A column of figures; columns of one `group` stand under a common head."""

    name: str
    group: str = ""
    lower: bool = False  # whether less is better
    everyone: bool = False  # whether all families are compared here
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row: its labels, then one cell a column.

    Rows of one `family` are compared with one another; with no family a row is not ranked (an upper bound, a
    figure averaged in another way). `rule` draws a line above it.
    """

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]
    family: str | None = "all"
    rule: bool = False
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A title, the heads of the label columns, columns, rows, and notes below."""

    title: str
    heads: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)

    def without_empty_columns(self) -> Table:
        """The table without columns that have no figure in any row."""
        kept = [i for i in range(len(self.columns)) if any(row.cells[i] is not None for row in self.rows)]
        rows = tuple(replace(row, cells=tuple(row.cells[i] for i in kept)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in kept), rows=rows)


def cell_text(cell: Cell) -> str:
    """A cell for people; – where there is nothing.

    >>> cell_text(Value(71.26, 0.31, 3)), cell_text(None)
    ('71.3 ± 0.3', '–')
    """
    return percent(None) if cell is None else str(cell)


def marks(table: Table) -> dict[tuple[int, int], Mark]:
    """The best and the second of each column and family, by (row, column); equal as shown means equal.

    A family of one has nothing to be better than, and a column where all are equal no best.
    """
    found: dict[tuple[int, int], Mark] = {}
    for position, column in enumerate(table.columns):
        contests: dict[str, dict[int, float]] = {}
        for index, row in enumerate(table.rows):
            cell = row.cells[position]
            if isinstance(cell, Value) and row.family is not None:
                contests.setdefault("" if column.everyone else row.family, {})[index] = round(cell.mean, 1)
        for shown in contests.values():
            levels = sorted(set(shown.values()), reverse=not column.lower)
            if len(levels) > 1:
                found |= {(index, position): "best" for index, value in shown.items() if value == levels[0]}
                found |= {(index, position): "second" for index, value in shown.items() if value == levels[1]}
    return found


def group_spans(columns: tuple[Column, ...]) -> list[tuple[str, int]]:
    """Neighbouring columns of one group: (group, how many)."""
    spans: list[tuple[str, int]] = []
    for column in columns:
        if spans and spans[-1][0] == column.group:
            spans[-1] = (column.group, spans[-1][1] + 1)
        else:
            spans.append((column.group, 1))
    return spans
