"""Tables as text: for the terminal, in Markdown, LaTeX, HTML and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from tiss.errors import TissError, suggest
from tiss.report.html import parts
from tiss.report.runs import RunLike, Value, experiments, load_results
from tiss.report.tables import Table, cell_text, report_tables

MARKED = "Best bold, second underlined."
SHORT = 6  # characters of a label that a narrow terminal has room for
CSV_HEADS = (
    *(
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
    ),
    *("step", "average", "column", "added", "value", "deviation", "seeds"),
)
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "–": "--",
    "…": r"\dots{}",
    "·": r"$\cdot$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "λ": r"$\lambda$",
    "τ": r"$\tau$",
    "→": r"$\to$",
    "−": "$-$",
} | {letter: "\\" + letter for letter in "&%$#_{}"}


def print_results(runs: Iterable[RunLike], console: Console | None = None, classes: bool = False) -> None:
    """Prints the tables of finished runs (folders or results): the last step, then step by step."""
    for experiment in experiments(load_results(runs)):
        for table in report_tables(experiment, classes):
            print_table(table, console)


def print_table(table: Table, console: Console | None = None) -> None:
    """Prints the table for a terminal; a wide one is cut into parts that fit.

    Where labels leave little room, rows are numbered, and what they are is listed once, before the parts.
    """
    console = console or Console(highlight=False)
    console.print(Text(table.title, style="bold"))
    lines: list[Text] = []
    if len(_cut(table, console.width)) > 1 and sum(_label_widths(table)) > console.width // 2:
        table, listed = _numbered(table)
        lines += [*listed, Text()]
    for part in _cut(table, console.width):
        lines += [*_terminal_lines(table, part), Text()]
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    for note in ([MARKED] if table.marks else []) + list(table.notes):
        console.print(Text(note, style="dim"))
    console.print()


def _numbered(table: Table) -> tuple[Table, list[Text]]:
    """The table with a number, the first and short labels for each row, and the lines that list all labels."""
    kept = [at for at, width in enumerate(_label_widths(table)) if at == 0 or width <= SHORT]
    listed, rows, above = [Text(f"row  {' · '.join(table.heads)}", "bold")], [], table.rows[0].labels
    for number, row in enumerate(table.rows, 1):
        above = (
            row.labels if row.labels[0] else (above[0], *row.labels[1:])
        )  # an empty label repeats the one above
        listed.append(Text(f"{number:3}  {' · '.join(above)}"))
        rows.append(replace(row, labels=(f"{number:3}", *(row.labels[at] for at in kept))))
    heads = ("row", *(table.heads[at] for at in kept))
    return replace(table, heads=heads, rows=tuple(rows)), listed


def _terminal_lines(table: Table, part: list[int]) -> Iterator[Text]:
    """One part of the columns: heads of groups, heads, a rule, rows."""
    labels = _label_widths(table)
    margin, widths = sum(labels) + 2 * len(labels), _widths(table, part)
    shown = replace(table, columns=tuple(table.columns[position] for position in part))
    rule = Text("─" * (margin + sum(widths) + 2 * (len(widths) - 1)), "dim")
    if any(name for name, _ in shown.groups):
        line, position = " " * margin, 0
        for name, count in shown.groups:
            room = sum(widths[position : position + count]) + 2 * (count - 1)
            line += f" {name} ".center(room, "─" if name else " ")[:room] + "  "
            position += count
        yield Text(line.rstrip(), "dim")
    heads = [head.ljust(width) for head, width in zip(table.heads, labels, strict=True)]
    heads += [column.name.rjust(width) for column, width in zip(shown.columns, widths, strict=True)]
    yield Text("  ".join(heads), "bold")
    yield rule
    marks, styles = table.marks, {"best": "bold green", "second": "underline"}
    for index, row in enumerate(table.rows):
        if row.rule and index:
            yield rule
        line_text = Text("  ".join(text.ljust(width) for text, width in zip(row.labels, labels, strict=True)))
        for position, width in zip(part, widths, strict=True):
            text = cell_text(row.cells[position])
            line_text.append(" " * (2 + width - len(text)))
            line_text.append(text, styles.get(marks.get((index, position), ""), ""))
        yield line_text


def _label_widths(table: Table) -> list[int]:
    return [
        max(map(len, column)) for column in zip(table.heads, *(row.labels for row in table.rows), strict=True)
    ]


def _widths(table: Table, part: list[int]) -> list[int]:
    """Characters of these columns: head, values and, over all of its columns, the name of the group."""
    widths = [
        max(len(text) for text in (table.columns[at].name, *(cell_text(row.cells[at]) for row in table.rows)))
        for at in part
    ]
    start = 0
    for name, count in replace(table, columns=tuple(table.columns[at] for at in part)).groups:
        room = sum(widths[start : start + count]) + 2 * (count - 1)
        widths[start] += max(0, len(f" {name} ") - room) if name else 0
        start += count
    return widths


def _cut(table: Table, width: int) -> list[list[int]]:
    """Columns in parts that fit into `width` characters; groups stay whole where they fit."""
    room = width - sum(_label_widths(table)) - 2 * len(table.heads)

    def fits(part: list[int]) -> bool:
        return sum(_widths(table, part)) + 2 * len(part) <= room

    cut: list[list[int]] = [[]]
    position = 0
    for _, count in table.groups:
        members = list(range(position, position + count))
        position += count
        if cut[-1] and not fits(cut[-1] + members):
            cut.append([])
        for member in members:  # a group wider than the terminal is cut inside
            if cut[-1] and not fits([*cut[-1], member]):
                cut.append([])
            cut[-1].append(member)
    return cut


def to_markdown(table: Table) -> str:
    """A table for GitHub: best bold, second italic."""
    marks, wrap = table.marks, {"best": "**{}**", "second": "*{}*"}
    heads = [*table.heads, *(f"{column.group} {column.name}".strip() for column in table.columns)]
    lines = [f"**{table.title}**", ""] if table.title else []
    lines += [_pipes(heads), "|" + "---|" * len(table.heads) + "---:|" * len(table.columns)]
    for index, row in enumerate(table.rows):
        cells = [
            wrap.get(marks.get((index, at), ""), "{}").format(cell_text(cell))
            for at, cell in enumerate(row.cells)
        ]
        lines.append(_pipes([*row.labels, *cells]))
    notes = ["Best **bold**, second *italic*."] if marks else []
    return "\n".join([*lines, *(f"\n{note}" for note in (*notes, *table.notes))]) + "\n"


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def escape_latex(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    >>> print(escape_latex("L_cd ± 5 %"))
    L\_cd $\pm$ 5 \%
    """
    return "".join(LATEX.get(letter, letter) for letter in text)


def to_latex(table: Table) -> str:
    r"""A `table` environment for booktabs: best bold, second underlined."""
    marks = table.marks
    caption = " ".join([f"{table.title}.", *([MARKED] if marks else []), *table.notes])
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(caption)}}}"]
    lines += [rf"\begin{{tabular}}{{{'l' * len(table.heads)}{'r' * len(table.columns)}}}", r"\toprule"]
    if any(name for name, _ in table.groups):
        cells, rules, start = [""] * len(table.heads), [], len(table.heads) + 1
        for name, count in table.groups:
            cells.append(rf"\multicolumn{{{count}}}{{c}}{{{escape_latex(name)}}}")
            rules += [rf"\cmidrule(lr){{{start}-{start + count - 1}}}"] if name else []
            start += count
        lines += [" & ".join(cells) + r" \\", "".join(rules)]
    heads = [*table.heads, *(column.name for column in table.columns)]
    lines += [" & ".join(map(escape_latex, heads)) + r" \\", r"\midrule"]
    wrap = {"best": r"\textbf{%s}", "second": r"\underline{%s}"}
    for index, row in enumerate(table.rows):
        lines += [r"\midrule"] if row.rule and index else []
        cells = list(map(escape_latex, row.labels))
        for at, cell in enumerate(row.cells):
            text = escape_latex(cell_text(cell))
            text = text.replace("-", "$-$") if isinstance(cell, Value) else text  # in text a - is a hyphen
            cells.append(wrap.get(marks.get((index, at), ""), "%s") % text)
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def to_html(table: Table) -> str:
    """A table for a page with the style sheet of `tiss.report.html`."""
    return parts().table(table)


def to_csv(tables: Iterable[Table]) -> str:
    """All values of all tables under one head, one per line, with all digits; what does not apply is empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, CSV_HEADS, restval="", lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for table in tables:
        for row in table.rows:
            labels = dict(zip(table.heads, row.labels, strict=True))
            for column, cell in zip(table.columns, row.cells, strict=True):
                if isinstance(cell, Value):
                    deviation = "" if cell.deviation is None else repr(cell.deviation)
                    value = {"value": repr(cell.mean), "deviation": deviation, "seeds": str(cell.count)}
                    value["column"] = column.name
                    writer.writerow({**table.facts, **labels, **value, **column.facts, **row.facts})
    return stream.getvalue()


FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "html": to_html,
}


def render_tables(tables: Iterable[Table], form: str) -> str:
    """The tables in one of FORMATS, one below the other, or all in one as `csv`."""
    if form == "csv":
        return to_csv(tables)
    if form not in FORMATS:
        raise TissError(suggest(form, [*FORMATS, "csv"], "table format"))
    return "".join(FORMATS[form](table) + "\n" for table in tables)
