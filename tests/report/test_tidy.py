"""One CSV over all tables: every line says all of itself."""

from __future__ import annotations

import csv
import io

import pytest

from tests.report.fakes import results
from tiss.data.voc import VOC
from tiss.report.paper_tables import paper_table
from tiss.report.runs import Experiment, Value, experiments, load_results
from tiss.report.table import Column, Row, Table
from tiss.report.tables import report_tables
from tiss.report.tidy import HEADS, to_csv

KEY = HEADS[: HEADS.index("value")]


def lines(*tables: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(tables))))


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    runs = [*(results(method, seed) for method in ("ft", "tiss") for seed in (0, 1)), results("offline")]
    (found,) = experiments(load_results(runs))
    return found


def test_full_precision_and_nothing_for_an_empty_cell() -> None:
    columns = (Column("old", "with b"), Column("new", "with b"))
    rows = (Row(("FT",), (Value(70.04), None)), Row(("MiB",), (Value(1 / 3, 1.26, 3), Value(-2.5))))
    found = lines(Table("t", ("method",), columns, rows))
    assert [(one["method"], one["column"]) for one in found] == [
        ("FT", "old"),
        ("MiB", "old"),
        ("MiB", "new"),
    ]
    assert [float(one["value"]) for one in found] == [70.04, 1 / 3, -2.5]
    assert [(one["deviation"], one["seeds"]) for one in found] == [("", "1"), ("1.26", "3"), ("", "1")]


def test_every_line_of_a_report_names_its_method_and_comes_once(experiment: Experiment) -> None:
    found = lines(*report_tables(experiment))
    assert {one["table"] for one in found} == {"last step", "steps", "classes", "forgetting"}
    assert {one["method"] for one in found} == {"FT", "TISS", "offline"}
    keys = [tuple(one[head] for head in KEY) for one in found]
    assert len(set(keys)) == len(keys)
    assert {(one["data"], one["task"], one["setup"]) for one in found} == {("shapes", "4-2", "overlapped")}


def test_steps_and_classes_are_numbers_where_there_are_any(experiment: Experiment) -> None:
    found = lines(*report_tables(experiment))
    steps = {one["step"] for one in found if (one["table"], one["method"]) == ("steps", "TISS")}
    assert steps == {"0", "1", "2"}
    assert {one["step"] for one in found if one["method"] == "offline"} == {""}  # all classes at once
    learnt = {one["column"]: one["learnt"] for one in found if one["table"] == "classes"}
    assert (learnt["disc"], learnt["cross"], learnt["bar"], learnt["background"]) == ("0", "1", "2", "")


def test_the_paper_s_rows_stand_beside_ours_with_the_same_words() -> None:
    classes = ("background", *VOC.classes)
    groups = (tuple(range(1, 16)), *((channel,) for channel in range(16, 21)))
    runs = load_results([results("mib", data="voc", task="15-1", classes=classes, groups=groups)])
    found = lines(paper_table("voc", experiments(runs)))
    ours, theirs = (
        {one["average"] for one in found if (one["source"] == "this package") is own} for own in (True, False)
    )
    assert ours == {"with background", "without background"}
    assert theirs == ours | {"unclear", "not derivable"}
    assert {one["table"] for one in found} == {"paper voc"}
    assert {(one["task"], one["setup"]) for one in found} == {("15-1", "overlapped")}
    assert {one["seeds"] for one in found if one["source"] != "this package"} == {""}
