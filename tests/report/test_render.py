"""One table, four ways to write it."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from tiss.errors import TissError
from tiss.report.latex import escape_latex
from tiss.report.render import print_table, render, to_html, to_latex, to_markdown
from tiss.report.runs import Value
from tiss.report.table import Column, Row, Table, group_spans, marks

TABLE = Table(
    "A title with 5 % & <more>",
    ("method",),
    (Column("old", "with b"), Column("new", "with b"), Column("lost", lower=True)),
    (
        Row(("FT_x",), (Value(10.0), Value(40.0, 1.26, 3), Value(60.0))),
        Row(("MiB",), (Value(70.0), Value(30.0), Value(5.0))),
        Row(("TISS",), (Value(70.04), None, Value(7.0))),
        Row(("offline",), (Value(80.0), Value(80.0), None), family=None, rule=True),
    ),
    ("A note.",),
)


def test_marks_rank_within_a_family_as_shown() -> None:
    assert marks(TABLE) == {
        (1, 0): "best",
        (2, 0): "best",  # 70.04 prints as 70.0
        (0, 0): "second",
        (0, 1): "best",
        (1, 1): "second",
        (1, 2): "best",
        (2, 2): "second",
    }


def test_nothing_is_best_alone_or_among_equals() -> None:
    rows = (Row(("a",), (Value(1.0),), "x"), Row(("b",), (Value(2.0),), "y"), Row(("c",), (Value(2.0),), "y"))
    assert marks(Table("", ("m",), (Column("v"),), rows)) == {}


def test_markdown() -> None:
    lines = to_markdown(TABLE).splitlines()
    assert lines[2] == "| method | with b old | with b new | lost |"
    assert lines[4] == "| FT_x | *10.0* | **40.0 ± 1.3** | 60.0 |"
    assert lines[6] == "| TISS | **70.0** | – | *7.0* |"
    assert "A note." in lines


def test_latex() -> None:
    text = to_latex(TABLE)
    assert r"\caption{A title with 5 \% \& $<$more$>$." in text
    assert r"\multicolumn{2}{c}{with b}" in text
    assert r"\cmidrule(lr){2-3}" in text
    assert r"FT\_x & \underline{10.0} & \textbf{40.0 $\pm$ 1.3} & 60.0 \\" in text
    assert text.count(r"\midrule") == 2
    assert text.count("{") == text.count("}")
    assert escape_latex("a\\b") == r"a\textbackslash{}b"


def test_latex_writes_a_minus_as_a_minus() -> None:
    rows = (
        Row(("15-1",), (Value(-3.14, 0.5, 3), Value(-2.0), None)),
        Row(("b",), (Value(1.0), Value(-1.0), "a-b")),
    )
    lines = to_latex(Table("15-1", ("m",), (Column("a"), Column("b"), Column("c")), rows)).splitlines()
    assert r"15-1 & \underline{$-$3.1 $\pm$ 0.5} & \underline{$-$2.0} & -- \\" in lines
    assert r"b & \textbf{1.0} & \textbf{$-$1.0} & a-b \\" in lines


def test_latex_has_nothing_left_that_it_could_stumble_over() -> None:
    nasty = "".join(map(chr, range(32, 127))) + "–…·±×≤≥λτ→−"
    table = Table(nasty, (nasty,), (Column(nasty, nasty),), (Row((nasty,), (nasty,)),), (nasty,))
    for line in to_latex(table).splitlines():
        text = re.sub(r"\\([&%$#_{}])", "", line.removesuffix(r" \\"))  # what is escaped by a backslash
        assert text.isascii()
        assert not re.search(r"[%#_~^]", text)
        assert text.count("$") % 2 == 0
        assert text.count("{") == text.count("}")
    assert to_latex(table).splitlines()[-4].count("&") - 2 * nasty.count("&") == 1  # one label, one cell


class Checker(HTMLParser):
    """Every tag that opens closes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.cells += tag == "td"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_balanced_and_escaped() -> None:
    checker = Checker()
    checker.feed(to_html(TABLE))
    assert checker.open == []
    assert checker.cells == 12
    assert "&lt;more&gt;" in to_html(TABLE)
    assert '<td class="best">40.0 ± 1.3</td>' in to_html(TABLE)


def test_terminal_cuts_wide_tables_between_groups() -> None:
    stream = io.StringIO()
    print_table(TABLE, Console(file=stream, width=32))
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("MiB")]
    assert [line.split() for line in lines] == [["MiB", "70.0", "30.0"], ["MiB", "5.0"]]
    stream = io.StringIO()
    print_table(TABLE, Console(file=stream, width=100))
    assert sum(line.startswith("MiB") for line in stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize("count", [1, 3])
def test_a_group_of_narrow_columns_keeps_its_whole_name(count: int) -> None:
    columns = tuple(Column(f"c{index}", "without background") for index in range(count))
    row = Row(("FT",), tuple(Value(1.0, None, 1) for _ in columns))
    stream = io.StringIO()
    print_table(Table("t", ("method",), columns, (row,)), Console(file=stream, width=60))
    assert "without background" in stream.getvalue()


@pytest.mark.parametrize("width", [30, 36, 40])
def test_a_group_cut_by_the_terminal_keeps_its_name_in_every_part(width: int) -> None:
    columns = tuple(Column(f"c{index}", "without background") for index in range(7))
    row = Row(("FT",), tuple(Value(1.0, None, 1) for _ in columns))
    stream = io.StringIO()
    print_table(Table("t", ("method",), columns, (row,)), Console(file=stream, width=width))
    lines = stream.getvalue().splitlines()
    parts = sum(line.startswith("FT") for line in lines)
    assert parts > 1
    assert sum("without background" in line for line in lines) == parts
    assert max(map(len, lines)) <= width


def test_rows_with_long_labels_are_numbered_where_figures_would_have_no_room() -> None:
    heads = ("method", "average", "source")
    columns = tuple(Column(f"c{index}", "15-1") for index in range(8))
    labels = (("FT", "without b", "this very package"), ("MiB", "with b", "another package"))
    rows = tuple(
        Row(label, tuple(Value(10.0 * n + index) for index in range(8))) for n, label in enumerate(labels, 1)
    )
    stream = io.StringIO()
    print_table(Table("t", heads, columns, rows), Console(file=stream, width=60))
    lines = stream.getvalue().splitlines()
    assert "  2  MiB · with b · another package" in lines
    words = [line.split() for line in lines]
    assert ["2", "MiB", "with", "b", *(f"{20 + index}.0" for index in range(6))] in words
    assert ["2", "MiB", "with", "b", "26.0", "27.0"] in words
    assert sum(line[:3] == ["row", "method", "average"] for line in words) == 2
    assert max(map(len, lines)) <= 60
    stream = io.StringIO()
    print_table(Table("t", heads, columns, rows), Console(file=stream, width=120))
    assert "row" not in stream.getvalue()


def test_a_narrow_terminal_keeps_the_steps_of_a_method_with_a_long_name() -> None:
    name = "MiB+cd (vit_small_patch14_dinov2)"
    columns = tuple(Column(f"column {index}") for index in range(8))
    rows = tuple(Row((name if not step else "", str(step)), (Value(50.0),) * 8) for step in range(3))
    stream = io.StringIO()
    print_table(Table("t", ("method", "step"), columns, rows), Console(file=stream, width=70))
    lines = stream.getvalue().splitlines()
    assert f"  3  {name} · 2" in lines  # a row that goes on with a method names it all the same
    assert any(line.split()[:2] == ["3", "2"] for line in lines)


def test_empty_columns_go() -> None:
    table = Table("", ("m",), (Column("a"), Column("b")), (Row(("x",), (None, Value(1.0))),))
    assert [column.name for column in table.without_empty_columns().columns] == ["b"]


def test_group_spans() -> None:
    assert group_spans(TABLE.columns) == [("with b", 2), ("", 1)]


def test_unknown_format() -> None:
    with pytest.raises(TissError, match="did you mean 'latex'"):
        render([TABLE], "latx")
