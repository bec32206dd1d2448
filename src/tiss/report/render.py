"""Tables as text: for the terminal, Markdown, LaTeX and HTML, and by way of `tidy` CSV."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from tiss.errors import TissError, suggest
from tiss.report.latex import escape_latex
from tiss.report.runs import Value
from tiss.report.table import Cell, Mark, Row, Table, cell_text, group_spans, marks
from tiss.report.tidy import to_csv

MARKED = "best bold, second underlined"
SHORT = 6  # characters of a label that a narrow terminal has room for in any case


def _heads(table: Table, separator: str = " ") -> list[str]:
    """One line of heads: the group's name joined to the column's."""
    figures = [
        f"{column.group}{separator}{column.name}" if column.group else column.name for column in table.columns
    ]
    return [*table.heads, *figures]


def print_table(table: Table, console: Console | None = None) -> None:
    """Prints the table for a terminal; a wide one is cut into parts that fit.

    Where labels would leave figures little room, rows are numbered, and what they are is said once, first.
    """
    console = console or Console(highlight=False)
    console.print(Text(table.title, style="bold"))
    parts = _parts(table, console.width)
    if len(parts) > 1 and sum(_label_widths(table)) > console.width // 2:
        for line in _legend(table):
            console.print(line, no_wrap=True, overflow="ignore", crop=False)
        console.print()
        table = _numbered(table, console.width // 2)
        parts = _parts(table, console.width)
    for part in parts:
        for line in _terminal_lines(table, part):
            console.print(line, no_wrap=True, overflow="ignore", crop=False)
        console.print()
    for note in (f"{MARKED.capitalize()}.", *table.notes) if marks(table) else table.notes:
        console.print(Text(note, style="dim"))
    console.print()


def _legend(table: Table) -> list[Text]:
    """What each row is, by its number."""
    lines = [Text(f"row  {' · '.join(table.heads)}", "bold")]
    before: tuple[str, ...] = ()
    for number, row in enumerate(table.rows, 1):
        if row.labels[0]:
            before = row.labels
        else:  # it goes on with what the row above it began
            before = tuple(own or above for own, above in zip(row.labels, before, strict=True))
        lines.append(Text(f"{number:3}  {' · '.join(before)}"))
    return lines


def _numbered(table: Table, room: int) -> Table:
    """The table with a number before each row and the labels that fit: in any case the first, and short ones."""
    numbered = replace(
        table,
        heads=("row", *table.heads),
        rows=tuple(
            replace(row, labels=(f"{number:3}", *row.labels)) for number, row in enumerate(table.rows, 1)
        ),
    )
    widths = _label_widths(numbered)
    count = max(2, sum(sum(widths[:n]) + 2 * n <= room for n in range(1, len(widths) + 1)))
    kept = [place for place, width in enumerate(widths) if place < count or width <= SHORT]
    rows = tuple(replace(row, labels=tuple(row.labels[place] for place in kept)) for row in numbered.rows)
    return replace(numbered, heads=tuple(numbered.heads[place] for place in kept), rows=rows)


def _terminal_lines(table: Table, part: list[int]) -> list[Text]:
    """The lines of one part: heads of groups, heads, a rule, rows."""
    widths = _label_widths(table)
    figures = _widths(table, part)
    columns = tuple(table.columns[position] for position in part)
    total = sum(widths) + 2 * len(widths) + sum(figures) + 2 * (len(figures) - 1)
    lines = []
    if any(column.group for column in columns):
        line, position = " " * (sum(widths) + 2 * len(widths)), 0
        for name, count in group_spans(columns):
            room = sum(figures[position : position + count]) + 2 * (count - 1)
            line += f" {name} ".center(room, "─" if name else " ")[:room] + "  "
            position += count
        lines.append(Text(line.rstrip(), "dim"))
    labels = "  ".join(head.ljust(width) for head, width in zip(table.heads, widths, strict=True))
    names = "  ".join(column.name.rjust(width) for column, width in zip(columns, figures, strict=True))
    lines += [Text(f"{labels}  {names}", "bold"), Text("─" * total, "dim")]
    ranked, styles = marks(table), {"best": "bold green", "second": "underline"}
    for index, row in enumerate(table.rows):
        if row.rule and index:
            lines.append(Text("─" * total, "dim"))
        line_text = Text("  ".join(text.ljust(width) for text, width in zip(row.labels, widths, strict=True)))
        for position, width in zip(part, figures, strict=True):
            text = cell_text(row.cells[position])
            line_text.append("  " + " " * (width - len(text)))
            line_text.append(text, styles.get(ranked.get((index, position), ""), ""))
        lines.append(line_text)
    return lines


def _label_widths(table: Table) -> list[int]:
    return [
        max(len(text) for text in [head, *(row.labels[i] for row in table.rows)])
        for i, head in enumerate(table.heads)
    ]


def _widths(table: Table, part: list[int]) -> list[int]:
    """Characters of these columns: head, figures, and with its neighbours there the name of their group."""
    widths = []
    for position in part:
        texts = [table.columns[position].name, *(cell_text(row.cells[position]) for row in table.rows)]
        widths.append(max(map(len, texts)))
    start = 0
    for name, count in group_spans(tuple(table.columns[position] for position in part)):
        room = sum(widths[start : start + count]) + 2 * (count - 1)
        widths[start] += max(0, len(f" {name} ") - room) if name else 0
        start += count
    return widths


def _parts(table: Table, width: int) -> list[list[int]]:
    """Columns dealt out so that each part fits into `width` characters, groups kept whole where they fit."""
    room = width - sum(_label_widths(table)) - 2 * len(table.heads)

    def fits(part: list[int]) -> bool:
        return sum(_widths(table, part)) + 2 * len(part) <= room

    parts: list[list[int]] = [[]]
    position = 0
    for _, count in group_spans(table.columns):
        members = list(range(position, position + count))
        position += count
        if parts[-1] and not fits(parts[-1] + members):
            parts.append([])
        for member in members:  # a group wider than the terminal is cut inside
            if parts[-1] and not fits([*parts[-1], member]):
                parts.append([])
            parts[-1].append(member)
    return parts


def to_markdown(table: Table) -> str:
    """A table for GitHub: best bold, second italic."""
    wrap: dict[Mark | None, Callable[[str], str]] = {
        "best": lambda text: f"**{text}**",
        "second": lambda text: f"*{text}*",
        None: str,
    }
    ranked = marks(table)
    lines = [f"**{table.title}**", "", "| " + " | ".join(map(_pipe, _heads(table))) + " |"]
    lines.append("|" + "---|" * len(table.heads) + "---:|" * len(table.columns))
    for index, row in enumerate(table.rows):
        cells = [wrap[ranked.get((index, i))](cell_text(cell)) for i, cell in enumerate(row.cells)]
        lines.append("| " + " | ".join([*map(_pipe, row.labels), *cells]) + " |")
    if ranked:
        lines += ["", "Best **bold**, second *italic*."]
    return "\n".join([*lines, *(f"\n{note}" for note in table.notes)]) + "\n"


def _pipe(text: str) -> str:
    return text.replace("|", "\\|")


def to_latex(table: Table) -> str:
    r"""A `table` environment for booktabs: best bold, second underlined."""
    ranked = marks(table)
    wrap = {"best": r"\textbf{%s}", "second": r"\underline{%s}", None: "%s"}
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(_caption(table))}}}"]
    lines += [rf"\begin{{tabular}}{{{'l' * len(table.heads)}{'r' * len(table.columns)}}}", r"\toprule"]
    if any(column.group for column in table.columns):
        lines += _latex_groups(table)
    heads = [*table.heads, *(column.name for column in table.columns)]
    lines += [" & ".join(map(escape_latex, heads)) + r" \\", r"\midrule"]
    for index, row in enumerate(table.rows):
        if row.rule and index:
            lines.append(r"\midrule")
        cells = [wrap[ranked.get((index, i))] % _latex_cell(cell) for i, cell in enumerate(row.cells)]
        lines.append(" & ".join([*map(escape_latex, row.labels), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _latex_cell(cell: Cell) -> str:
    """A figure, its minus as a minus: in text a - is a hyphen."""
    text = escape_latex(cell_text(cell))
    return text.replace("-", "$-$") if isinstance(cell, Value) else text


def _caption(table: Table) -> str:
    return " ".join(
        [table.title + ".", f"{MARKED.capitalize()}." if marks(table) else "", *table.notes]
    ).strip()


def _latex_groups(table: Table) -> list[str]:
    cells, rules, start = [""] * len(table.heads), [], len(table.heads) + 1
    for name, count in group_spans(table.columns):
        cells.append(rf"\multicolumn{{{count}}}{{c}}{{{escape_latex(name)}}}")
        if name:
            rules.append(rf"\cmidrule(lr){{{start}-{start + count - 1}}}")
        start += count
    return [" & ".join(cells) + r" \\", "".join(rules)]


def to_html(table: Table) -> str:
    """A bare HTML table; the page's style sheet does the rest."""
    ranked = marks(table)
    lines = ['<div class="scroll"><table>', f"<caption>{html.escape(table.title)}</caption>", "<thead>"]
    if any(column.group for column in table.columns):
        spans = [
            f'<th colspan="{count}">{html.escape(name)}</th>' for name, count in group_spans(table.columns)
        ]
        lines.append("<tr>" + f'<th colspan="{len(table.heads)}"></th>' + "".join(spans) + "</tr>")
    lines.append("<tr>" + "".join(f'<th class="label">{html.escape(head)}</th>' for head in table.heads))
    lines.append(
        "".join(f"<th>{html.escape(column.name)}</th>" for column in table.columns) + "</tr></thead><tbody>"
    )
    lines += [_html_row(row, index, ranked) for index, row in enumerate(table.rows)]
    lines.append("</tbody></table></div>")
    notes = ([MARKED.capitalize() + "."] if ranked else []) + list(table.notes)
    if notes:
        lines.append(f'<p class="note">{html.escape(" ".join(notes))}</p>')
    return "\n".join(lines)


def _html_row(row: Row, index: int, ranked: dict[tuple[int, int], Mark]) -> str:
    labels = "".join(f'<th class="label" scope="row">{html.escape(label)}</th>' for label in row.labels)
    cells = "".join(
        f'<td class="{ranked.get((index, i), "plain")}">{html.escape(cell_text(cell))}</td>'
        for i, cell in enumerate(row.cells)
    )
    return f"<tr{' class=rule' if row.rule else ''}>{labels}{cells}</tr>"


FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "html": to_html,
}


def render(tables: Iterable[Table], form: str) -> str:
    """The tables in one of FORMATS, one below the other, or as `csv`: all in one."""
    if form == "csv":
        return to_csv(tables)
    if form not in FORMATS:
        raise TissError(suggest(form, [*FORMATS, "csv"], "table format"))
    return "".join(FORMATS[form](table) + "\n" for table in tables)
