"""Tables as text: for terminals and appendices, in markdown and in LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiss.report.render import escape_latex


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]], form: str = "text") -> str:
    """`rows` under `header`; columns whose cells are all numbers are set to the right.

    >>> print(format_table(("class", "images"), [("cat", "12"), ("dog", "7")]))
    class  images
    cat        12
    dog         7
    """
    lines = [list(row) for row in rows]
    number = [_all_numbers([row[column] for row in lines]) for column in range(len(header))]
    if form == "latex":
        body = [" & ".join(map(escape_latex, row)) + r" \\" for row in (list(header), *lines)]
        columns = "".join("r" if right else "l" for right in number)
        return "\n".join(
            [rf"\begin{{tabular}}{{{columns}}}", body[0], r"\hline", *body[1:], r"\end{tabular}"]
        )
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    cells = [
        [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, number, strict=True)
        ]
        for row in (list(header), *lines)
    ]
    if form == "markdown":
        rule = [
            "-" * (max(3, width) - 1) + (":" if right else "-")
            for width, right in zip(widths, number, strict=True)
        ]
        return "\n".join("| " + " | ".join(row) + " |" for row in (cells[0], rule, *cells[1:]))
    return "\n".join("  ".join(row).rstrip() for row in cells)


def _all_numbers(cells: list[str]) -> bool:
    return bool(cells) and all(
        cell.strip(" %–.,").replace(",", "").replace(".", "").isdecimal() or cell in ("–", "")
        for cell in cells
    )
