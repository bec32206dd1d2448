"""The tables hold what the runs scored, in every format."""

import csv
import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.report.fakes import GROUPS, folder, results, sort
from tiss.evaluation.scores import percent
from tiss.report import render, tables
from tiss.report.paper import paper_table
from tiss.report.runs import Value
from tiss.report.tables import Column, Row, Table

RUNS = [results(method) for method in ("ft", "mib", "tiss", "offline")]
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


def column(table: Table, group: str, name: str) -> list[str]:
    (position,) = [i for i, c in enumerate(table.columns) if (c.group, c.name) == (group, name)]
    return [texts[position] for texts in table.texts]


def printed(table: Table, width: int) -> list[str]:
    stream = io.StringIO()
    render.print_table(table, Console(file=stream, width=width))
    return stream.getvalue().splitlines()


def test_final_table():
    table = tables.final_table(sort(*RUNS))
    last = [run["steps"][-1]["scores"] for run in RUNS]
    for average in ("with_background", "without_background"):
        group = average.replace("_", " ")
        for part in ("old", "new", "all", "harmonic"):
            assert column(table, group, part) == [percent(scores[part][average]) for scores in last]
        assert column(table, group, "over steps") == [
            percent(run["average"][average]) for run in RUNS[:3]
        ] + ["–"]
    assert column(table, "old classes", "forgotten")[3] == "–"
    assert table.rows[3].family is None  # the upper bound competes with nobody
    share = last[2]["all"]["with_background"] / last[3]["all"]["with_background"]
    assert column(table, "", "all / offline")[2:] == [f"{share:.3f}", "–"]
    timed = [results("ft", seed, train_seconds=[60.0, 90.0 + 60 * seed]) for seed in (0, 1)]
    assert column(tables.final_table(sort(*timed)), "", "minutes") == ["3.0"]


def test_step_class_and_forgetting_tables():
    experiment = sort(*RUNS)
    steps = tables.step_table(experiment)
    assert len(steps.rows) == 3 * 3 + 1
    assert column(steps, "with background", "new")[0] == "–"
    scores = [percent(step["scores"]["old"]["with_background"]) for step in RUNS[0]["steps"]]
    assert column(steps, "with background", "old")[:3] == scores
    assert steps.rows[-1].labels == ("offline", "all at once")
    classes = tables.class_table(experiment)
    assert [c.name for c in classes.columns] == RUNS[0]["classes"]
    assert column(classes, "step 1", "star")[1] == percent(RUNS[1]["steps"][-1]["iou"]["star"])
    lost = tables.forgetting_table(experiment)
    assert lost is not None and len(lost.rows) == 3
    assert len(lost.columns) == len(GROUPS[0]) + len(GROUPS[1])
    assert column(lost, "step 0", "disc")[0] == percent(RUNS[0]["steps"][-1]["forgetting"]["disc"])
    assert tables.forgetting_table(sort(RUNS[3])) is None


def test_notes_say_what_a_reader_must_know():
    bare = tables.final_table(sort(results(has_background=False)))
    assert {column.group for column in bare.columns} == {"without background", "old classes"}
    assert any("Channel 0" in note for note in bare.notes)
    absent = results()
    absent["steps"][-1] |= {"absent": ["moon"]}
    assert any("moon" in note for note in tables.final_table(sort(absent)).notes)
    seeds = tables.final_table(sort(results(seed=0), results(seed=1)))
    assert any("2 seeds" in note for note in seeds.notes) and "±" in seeds.texts[0][0]


@pytest.mark.parametrize(("points", "warned"), [(9.0, False), (11.0, True)])
def test_a_background_that_falls_in_a_step_is_a_note(points: float, warned: bool):
    run = results("plop")
    for step, lost in zip(run["steps"], (0, points, points), strict=True):
        step["iou"]["background"] = 90.0 - lost
    notes = " ".join(tables.step_table(sort(run, RUNS[0])).notes)
    assert ("PLOP (90.0 → 79.0 in step 1)" in notes) == warned


def test_a_run_under_way_competes_with_nobody():
    short = results("mib")
    short |= {"finished": False, "steps": short["steps"][:1]}
    table = tables.final_table(sort(results(), short))
    assert {row.labels[0]: row.family for row in table.rows} == {"TISS": "all", "MiB (step 0 of 2)": None}


def test_plop_with_the_exact_median_is_named_and_explained(tmp_path: Path):
    both = [(seed, official) for seed in (0, 1) for official in (False, True)]
    runs = [folder(tmp_path, results("plop", seed), official=official) for seed, official in both]
    table = tables.final_table(sort(*runs))
    assert [row.labels[0] for row in table.rows] == ["PLOP", "PLOP (exact median)"]
    assert any("official: false" in note for note in table.notes)
    assert not any("official" in note for note in tables.final_table(sort(*runs[1::2])).notes)


USUAL = {"recipe": "tuned", "lr": 0.001, "step_lr": 0.0002, "epochs": 4, "step_epochs": 10}


def trained(label: str, at_once: bool = False, **changed: object) -> SimpleNamespace:
    settings = {f"train.{name}": value for name, value in (USUAL | changed).items()}
    return SimpleNamespace(label=label, at_once=at_once, first=SimpleNamespace(settings=settings))


def test_rows_that_were_trained_differently_are_named_with_what_differs():
    rows = [
        *(trained("FT"), trained("MiB"), trained("LwF"), trained("offline", at_once=True)),
        *(trained("A", epochs=9), trained("B", epochs=9), trained("recall", step_lr=0.0005, step_epochs=5)),
    ]
    assert tables.recipe_lines(rows) == [  # type: ignore[arg-type]
        "recipe tuned · learning rate 0.001, in later steps 0.0002 · epochs 4, in later steps 10",
        "A, B: epochs 9, in later steps 10",
        "recall: learning rate 0.001, in later steps 0.0005 · epochs 4, in later steps 5",
    ]  # offline has no later steps: it differs in nothing
    rows[3] = trained("offline", at_once=True, epochs=40)
    assert "offline: epochs 40" in tables.recipe_lines(rows)  # type: ignore[arg-type]
    bare = SimpleNamespace(label="FT", at_once=False, first=SimpleNamespace(settings={}))
    assert tables.recipe_lines([bare]) == []  # type: ignore[list-item]


def test_marks_rank_within_a_family_as_shown():
    best = dict.fromkeys(((1, 0), (2, 0), (0, 1), (1, 2)), "best")  # 70.04 prints as 70.0
    assert TABLE.marks == best | dict.fromkeys(((0, 0), (1, 1), (2, 2)), "second")
    rows = (Row(("a",), (Value(1.0),), "x"), Row(("b",), (Value(2.0),), "y"), Row(("c",), (Value(2.0),), "y"))
    assert Table("", ("m",), (Column("v"),), rows).marks == {}
    assert TABLE.groups == [("with b", 2), ("", 1)]


def test_markdown():
    lines = render.to_markdown(TABLE).splitlines()
    assert lines[2] == "| method | with b old | with b new | lost |"
    assert lines[4] == "| FT_x | *10.0* | **40.0 ± 1.3** | 60.0 |"
    assert lines[6] == "| TISS | **70.0** | – | *7.0* |"
    assert "A note." in lines


def test_latex():
    text = render.to_latex(TABLE)
    assert r"\caption{A title with 5 \% \& $<$more$>$." in text
    assert r"\multicolumn{2}{c}{with b}" in text
    assert r"\cmidrule(lr){2-3}" in text
    assert r"FT\_x & \underline{10.0} & \textbf{40.0 $\pm$ 1.3} & 60.0 \\" in text
    assert text.count(r"\midrule") == 2
    assert render.escape_latex("a\\b") == r"a\textbackslash{}b"
    rows = (
        Row(("15-1",), (Value(-3.14, 0.5, 3), Value(-2.0), None)),
        Row(("b",), (Value(1.0), Value(-1.0), "a-b")),
    )
    lines = render.to_latex(Table("15-1", ("m",), tuple(map(Column, "abc")), rows)).splitlines()
    # a minus, not a hyphen
    assert r"15-1 & \underline{$-$3.1 $\pm$ 0.5} & \underline{$-$2.0} & -- \\" in lines
    assert r"b & \textbf{1.0} & \textbf{$-$1.0} & a-b \\" in lines


def test_latex_has_nothing_left_that_it_could_stumble_over():
    nasty = "".join(map(chr, range(32, 127))) + "–…·±×≤≥λτ→−"
    table = Table(nasty, (nasty,), (Column(nasty, nasty),), (Row((nasty,), (nasty,)),), (nasty,))
    for line in render.to_latex(table).splitlines():
        text = re.sub(r"\\([&%$#_{}])", "", line.removesuffix(r" \\"))  # what is escaped by a backslash
        assert text.isascii()
        assert not re.search(r"[%#_~^]", text)
        assert text.count("$") % 2 == 0
        assert text.count("{") == text.count("}")
    (row,) = render.to_latex(table).splitlines()[-4:-3]
    assert row.count("&") - 2 * nasty.count("&") == 1  # one label, one cell


@pytest.mark.parametrize(("count", "width"), [(1, 60), (3, 60), (7, 30), (7, 36), (7, 40)])
def test_a_group_keeps_its_whole_name_in_every_part(count: int, width: int):
    columns = tuple(Column(f"c{index}", "without background") for index in range(count))
    row = Row(("FT",), (Value(1.0),) * count)
    lines = printed(Table("t", ("method",), columns, (row,)), width)
    parts = sum(line.startswith("FT") for line in lines)
    assert (parts > 1) == (count == 7)
    assert sum("without background" in line for line in lines) == parts
    assert max(map(len, lines)) <= width
    narrow = [line.split() for line in printed(TABLE, 32) if line.startswith("MiB")]
    assert narrow == [["MiB", "70.0", "30.0"], ["MiB", "5.0"]]


def test_rows_with_long_labels_are_numbered_where_values_would_have_no_room():
    columns = tuple(Column(f"c{index}", "15-1") for index in range(8))
    labels = (("FT", "b", "this very long package"), ("MiB", "b", "another package"))
    rows = tuple(Row(one, tuple(Value(10.0 * n + i) for i in range(8))) for n, one in enumerate(labels, 1))
    table = Table("t", ("method", "b", "source"), columns, rows)
    lines = printed(table, 56)
    assert "  2  MiB · b · another package" in lines
    values = [line.split()[2:] for line in lines if line.split()[:2] == ["2", "MiB"] and "·" not in line]
    assert [text for part in values for text in part] == [f"{20 + index}.0" for index in range(8)]
    assert max(map(len, lines)) <= 56
    assert not any(line.startswith("row") for line in printed(table, 120))
    name = "MiB+cd (vit_small_patch14_dinov2)"
    steps = tuple(Row((name if not step else "", str(step)), (Value(50.0),) * 8) for step in range(3))
    lines = printed(Table("t", ("method", "step"), columns, steps), 70)
    assert f"  3  {name} · 2" in lines  # a row that continues a method names it all the same


def lines_of(*tables: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render.render_tables(tables, "csv"))))


def test_csv_has_all_digits_and_nothing_for_an_empty_cell():
    rows = (Row(("FT",), (Value(70.04), None)), Row(("MiB",), (Value(1 / 3, 1.26, 3), Value(-2.5))))
    found = lines_of(Table("t", ("method",), (Column("old"), Column("new")), rows))
    assert [one["method"] + one["column"] for one in found] == ["FTold", "MiBold", "MiBnew"]
    assert [float(one["value"]) for one in found] == [70.04, 1 / 3, -2.5]
    assert [(one["deviation"], one["seeds"]) for one in found] == [("", "1"), ("1.26", "3"), ("", "1")]


def test_every_line_of_the_csv_is_complete_and_comes_once():
    runs = [*(results(method, seed) for method in ("ft", "tiss") for seed in (0, 1)), results("offline")]
    found = lines_of(*tables.report_tables(sort(*runs)))
    assert {one["table"] for one in found} == {"last step", "steps", "classes", "forgetting"}
    assert {one["method"] for one in found} == {"FT", "TISS", "offline"}
    place = render.CSV_COLUMNS.partition(" value")[0].split()
    keys = [tuple(one[head] for head in place) for one in found]
    assert len(set(keys)) == len(keys)
    assert {(one["data"], one["task"], one["setup"]) for one in found} == {("shapes", "4-2", "overlapped")}
    steps = {one["step"] for one in found if (one["table"], one["method"]) == ("steps", "TISS")}
    assert steps == {"0", "1", "2"}
    assert {one["step"] for one in found if one["method"] == "offline"} == {""}  # all classes at once
    added = {one["column"]: one["added"] for one in found if one["table"] == "classes"}
    assert (added["disc"], added["cross"], added["bar"], added["background"]) == ("0", "1", "2", "")


def test_the_paper_s_rows_have_the_same_columns_in_the_csv():
    found = list(csv.DictReader(io.StringIO(render.to_csv([paper_table("voc")]))))
    averages = {"with background", "without background", "unclear", "not derivable"}
    assert {one["average"] for one in found} == averages
    assert {one["table"] for one in found} == {"paper voc"}
    assert ("15-1", "overlapped") in {(one["task"], one["setup"]) for one in found}
    assert {one["seeds"] for one in found} == {""}
