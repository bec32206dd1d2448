"""Tables as text: for the terminal, Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from tiss.errors import TissError, suggest
from tiss.reporting.runs import Value
from tiss.reporting.table import Mark, Row, Table, cell_text, group_spans, marks

MARKED = "best bold, second underlined"


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
    return lines + [Text(f"{number:3}  {' · '.join(row.labels)}") for number, row in enumerate(table.rows, 1)]


def _numbered(table: Table, room: int) -> Table:
    """The table with a number before each row and as many of its labels as fit, the first in any case."""
    numbered = replace(
        table,
        heads=("row", *table.heads),
        rows=tuple(
            replace(row, labels=(f"{number:3}", *row.labels)) for number, row in enumerate(table.rows, 1)
        ),
    )
    widths = _label_widths(numbered)
    count = max(2, sum(sum(widths[:n]) + 2 * n <= room for n in range(1, len(widths) + 1)))
    rows = tuple(replace(row, labels=row.labels[:count]) for row in numbered.rows)
    return replace(numbered, heads=numbered.heads[:count], rows=rows)


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


LATEX = {
    "\\": r"\textbackslash{}",
    "–": "--",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "λ": r"$\lambda$",
    "τ": r"$\tau$",
    "→": r"$\to$",
    "−": "$-$",
} | {letter: "\\" + letter for letter in "&%$#_{}"}


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(LATEX.get(letter, letter) for letter in text)


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
        cells = [
            wrap[ranked.get((index, i))] % escape_latex(cell_text(cell)) for i, cell in enumerate(row.cells)
        ]
        lines.append(" & ".join([*map(escape_latex, row.labels), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


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


def to_csv(table: Table) -> str:
    """Full precision: for each column its mean, sample deviation and number of seeds."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    figures = _heads(table)[len(table.heads) :]
    extra = [f"{name}{suffix}" for name in figures for suffix in ("", " deviation", " seeds")]
    writer.writerow([*table.heads, *extra])
    for row in table.rows:
        writer.writerow([*row.labels, *(text for cell in row.cells for text in _csv_cell(cell))])
    return stream.getvalue()


def _csv_cell(cell: Value | str | None) -> tuple[str, str, str]:
    if isinstance(cell, Value):
        return repr(cell.mean), "" if cell.deviation is None else repr(cell.deviation), str(cell.count)
    return cell or "", "", ""


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
    "csv": to_csv,
    "html": to_html,
}


def render(table: Table, form: str) -> str:
    """The table in one of FORMATS."""
    if form not in FORMATS:
        raise TissError(suggest(form, FORMATS, "table format"))
    return FORMATS[form](table)
