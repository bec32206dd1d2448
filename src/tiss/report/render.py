"""Tables as text, for the terminal, in Markdown, LaTeX and CSV, and self-contained HTML pages.

A page is a template in `report/templates/` that extends `base.html` and fills its block `body`; `write_page` writes it.
Values are escaped; what `embed` and `plots.inline_svg` return is not. `parts.html` holds the macros that pages share. A
template that extends nothing is a fragment for another page, which puts `stylesheet()` into its head and the fragment
into an element of the class `tiss`: no rule of the style sheet reaches outside of that.
"""

import base64
import csv
import io
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape
from PIL import Image
from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from tiss import __version__
from tiss.evaluation.scores import percent
from tiss.files import write_text
from tiss.report.runs import RunLike, Value, experiments, load_results
from tiss.report.tables import RANKED, Table, report_tables

NUMBER = re.compile(r"[+-]?[\d., %–]*")
CSV_COLUMNS = (
    "table data task setup protocol holdout source method architecture backbone "
    "step average column added value deviation seeds"
)
SYMBOLS = (
    r"\ \textbackslash{} ~ \textasciitilde{} ^ \textasciicircum{} < $<$ > $>$ | $|$ – -- … \dots{} · $\cdot$ ± $\pm$ "
    r"× $\times$ ≤ $\leq$ ≥ $\geq$ λ $\lambda$ τ $\tau$ → $\to$ − $-$ & \& % \% $ \$ # \# _ \_ { \{ } \}"
)
LATEX = str.maketrans(dict(zip(SYMBOLS.split()[::2], SYMBOLS.split()[1::2], strict=True)))


def print_results(runs: Iterable[RunLike]) -> None:
    """Prints the tables of finished runs (folders or results): the last step, then step by step."""
    for experiment in experiments(load_results(runs)):
        for table in report_tables(experiment, classes=False):
            print_table(table)


def print_table(table: Table, console: Console | None = None) -> None:
    """Prints the table for a terminal; a wide one is cut into parts that fit, where possible between groups.

    Where labels leave little room, rows are numbered, and what they are is listed once, before the parts.
    """
    console = console or Console(highlight=False)
    plain: dict[str, Any] = {"no_wrap": True, "overflow": "ignore", "crop": False}
    console.print(Text(table.title, "bold"))
    if not _fits(table, console.width) and not _fits(table.take([]), console.width // 2):
        console.print(Text(f"row  {' · '.join(table.heads)}", "bold"), **plain)
        rows, name = [], ""
        for number, row in enumerate(table.rows, 1):
            name = row.labels[0] or name  # an empty label repeats the one above
            console.print(Text(f"{number:3}  {' · '.join((name, *row.labels[1:]))}"), **plain)
            rows.append(replace(row, labels=(str(number), row.labels[0])))
        console.print()
        table = replace(table, heads=("row", table.heads[0]), rows=tuple(rows))
    cut: list[list[int]] = [[]]
    start = 0
    for _, count in table.groups:
        group = list(range(start, start + count))
        start += count
        # a group wider than the terminal is cut inside
        for places in [group] if _fits(table.take(group), console.width) else [[place] for place in group]:
            if cut[-1] and not _fits(table.take(cut[-1] + places), console.width):
                cut.append([])
            cut[-1] += places
    for places in cut:
        console.print(_grid(table.take(places)), **plain)
        console.print()
    for note in ([RANKED] if table.marks else []) + list(table.notes):
        console.print(Text(note, style="dim"))
    console.print()


def _fits(table: Table, width: int) -> bool:
    return Console(width=10_000).measure(_grid(table)).maximum <= width


def _grid(table: Table) -> Grid:
    """The table for rich, each group named above its first column."""
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for head in table.heads:
        grid.add_column(f"\n{head}")
    first = {0, *itertools.accumulate(count for _, count in table.groups)}
    for at, column in enumerate(table.columns):
        grid.add_column(f"{column.group if at in first else ''}\n{column.name}", justify="right")
    marks, styles = table.marks, {"best": "bold green", "second": "underline"}
    for index, (row, texts) in enumerate(zip(table.rows, table.texts, strict=True)):
        if row.rule and index:
            grid.add_section()
        cells = (Text(text, styles.get(marks.get((index, at), ""), "")) for at, text in enumerate(texts))
        grid.add_row(*row.labels, *cells)
    return grid


def to_markdown(table: Table) -> str:
    """A table for GitHub: best bold, second italic."""
    marks, wrap = table.marks, {"best": "**{}**", "second": "*{}*"}
    heads = [*table.heads, *(f"{column.group} {column.name}".strip() for column in table.columns)]
    lines = [f"**{table.title}**", ""] if table.title else []
    lines += [_pipes(heads), "|" + "---|" * len(table.heads) + "---:|" * len(table.columns)]
    for index, (row, texts) in enumerate(zip(table.rows, table.texts, strict=True)):
        cells = [wrap.get(marks.get((index, at), ""), "{}").format(text) for at, text in enumerate(texts)]
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
    return text.translate(LATEX)


def to_latex(table: Table) -> str:
    r"""A `table` environment for booktabs: best bold, second underlined."""
    marks, wrap = table.marks, {"best": r"\textbf{%s}", "second": r"\underline{%s}"}
    caption = " ".join([f"{table.title}.", *([RANKED] if marks else []), *table.notes])
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(caption)}}}"]
    lines += [rf"\begin{{tabular}}{{{'l' * len(table.heads)}{'r' * len(table.columns)}}}", r"\toprule"]
    if any(name for name, _ in table.groups):
        cells, rules, start = [""] * len(table.heads), "", len(table.heads) + 1
        for name, count in table.groups:
            cells.append(rf"\multicolumn{{{count}}}{{c}}{{{escape_latex(name)}}}")
            rules += rf"\cmidrule(lr){{{start}-{start + count - 1}}}" if name else ""
            start += count
        lines += [" & ".join(cells) + r" \\", rules]
    heads = [*table.heads, *(column.name for column in table.columns)]
    lines += [" & ".join(map(escape_latex, heads)) + r" \\", r"\midrule"]
    for index, (row, texts) in enumerate(zip(table.rows, table.texts, strict=True)):
        lines += [r"\midrule"] if row.rule and index else []
        cells = list(map(escape_latex, row.labels))
        for at, (cell, text) in enumerate(zip(row.cells, map(escape_latex, texts), strict=True)):
            # in text a - is a hyphen
            text = text.replace("-", "$-$") if isinstance(cell, Value) else text
            cells.append(wrap.get(marks.get((index, at), ""), "%s") % text)
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]], form: str = "text") -> str:
    """Plain cells under `header`, as text, markdown or latex; columns of numbers are set to the right.

    >>> print(format_table(("class", "images"), [("cat", "12"), ("dog", "7")]))
    class  images
    cat        12
    dog         7
    """
    padded, rule = [], []
    for column in zip(header, *rows, strict=True):
        right = len(column) > 1 and all(map(NUMBER.fullmatch, column[1:]))
        width = max(3 if form == "markdown" else 0, *map(len, column))
        padded.append([cell.rjust(width) if right else cell.ljust(width) for cell in column])
        rule.append("-" * (width - 1) + (":" if right else "-"))
    head, *body = zip(*padded, strict=True)
    if form == "markdown":
        return "\n".join(map(_pipes, (head, rule, *body)))
    if form == "text":
        return "\n".join("  ".join(row).rstrip() for row in (head, *body))
    lines = [" & ".join(escape_latex(cell.strip()) for cell in row) + r" \\" for row in (head, *body)]
    kinds = "".join("r" if one.endswith(":") else "l" for one in rule)
    lines.insert(1, r"\hline")
    return "\n".join([rf"\begin{{tabular}}{{{kinds}}}", *lines, r"\end{tabular}"])


def to_csv(tables: Iterable[Table]) -> str:
    """All values of all tables under one head, one per line, with all digits; what does not apply is empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(
        stream, CSV_COLUMNS.split(), restval="", lineterminator="\n", extrasaction="ignore"
    )
    writer.writeheader()
    for table in tables:
        for row in table.rows:
            labels = dict(zip(table.heads, row.labels, strict=True))
            for column, cell in zip(table.columns, row.cells, strict=True):
                if isinstance(cell, Value):
                    value = {"value": cell.mean, "deviation": cell.deviation, "seeds": cell.count}
                    facts = {**table.facts, **labels, **value, **column.facts, **row.facts}
                    writer.writerow({"column": column.name, **facts})
    return stream.getvalue()


FORMATS: dict[str, Callable[[Table], str]] = {"markdown": to_markdown, "latex": to_latex}


def render_tables(tables: Iterable[Table], form: str) -> str:
    """The tables in one of FORMATS, one below the other, or all in one as `csv`."""
    return to_csv(tables) if form == "csv" else "".join(FORMATS[form](table) + "\n" for table in tables)


def render(template: str, **values: Any) -> str:
    """The text of a template from `report/templates/`; a name that it lacks is an error."""
    return _environment().get_template(template).render(values)


def write_page(path: str | Path, template: str, **values: Any) -> Path:
    """Renders a template into a file and returns its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(template, **values))
    return path


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tiss.report"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"style": Markup(stylesheet()), "version": __version__, "embed": embed}
    environment.filters |= {
        "percent": percent,
        "signed": signed,
        "yaml": lambda settings: yaml.safe_dump({**settings}, sort_keys=False, allow_unicode=True),
    }
    environment.globals["parts"] = environment.get_template("parts.html").module
    return environment


def signed(value: float | None) -> str:
    """A change, with its sign."""
    return "–" if value is None else f"{value:+.1f}"


@cache
def stylesheet() -> str:
    """The style sheet of all pages, light and dark; it applies inside of elements of the class `tiss`."""
    return read_template("style.css")


def read_template(name: str) -> str:
    """A file of `report/templates/` as it stands."""
    return Path(__file__).with_name("templates").joinpath(name).read_text(encoding="utf-8")


def embed(image: Image.Image | np.ndarray, alt: str = "", largest: int | None = None) -> Markup:
    """An <img> that holds its pixels: few colours as PNG, photos as JPEG; `largest` limits the longer side."""
    if not isinstance(image, Image.Image):
        image = Image.fromarray(np.ascontiguousarray(image))
    flat = image.getcolors(256) is not None
    if largest is not None and max(image.size) > largest:
        factor = largest / max(image.size)
        size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
        image = image.resize(size, Image.Resampling.NEAREST if flat else Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    kind = "png" if flat or max(image.size) <= 96 else "jpeg"
    if kind == "png":
        image.save(stream, "PNG", optimize=True)
    else:
        image.convert("RGB").save(stream, "JPEG", quality=88)
    data = base64.b64encode(stream.getvalue()).decode()
    return Markup(f'<img src="data:image/{kind};base64,{data}" alt="{escape(alt)}">')
