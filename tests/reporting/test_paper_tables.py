"""Our rows in the paper's tables: in the right columns, and never ranked against another average."""

from __future__ import annotations

import pytest

from tests.reporting.fakes import results
from tiss.data.voc import CLASSES
from tiss.reporting.paper_tables import OURS, fitting_tables, group_mean, paper_table
from tiss.reporting.runs import Experiment, Value, experiments, load_results
from tiss.reporting.table import Table, marks

NAMES = ("background", *CLASSES)
GROUPS = (tuple(range(1, 16)), *((k,) for k in range(16, 21)))


def run(method: str = "tiss", **others: object) -> dict[str, object]:
    values = {"groups": GROUPS, "classes": NAMES, "data": "voc", "task": "15-1"} | others
    return results(method, **values)  # type: ignore[arg-type]


def sort(*runs: dict[str, object]) -> list[Experiment]:
    return experiments(load_results(runs))


def ours(table: Table) -> list[tuple[tuple[str, ...], list[str]]]:
    return [(row.labels, [str(cell) for cell in row.cells]) for row in table.rows if row.labels[2] == OURS]


def test_runs_find_the_tables_they_have_a_place_in() -> None:
    assert fitting_tables(sort(run())) == ["voc", "15-1o"]
    assert fitting_tables(sort(run(task="10-1"))) == []
    assert fitting_tables(sort(run(holdout=0.2))) == []  # not the test set
    assert (
        fitting_tables(sort(run(classes=("background", *reversed(CLASSES))))) == []
    )  # other classes are old
    assert fitting_tables(sort(results())) == []


def test_both_averages_stand_in_the_paper_s_columns() -> None:
    values = run()
    table = paper_table("voc", sort(values))
    assert [(column.group, column.name) for column in table.columns] == [
        ("15-1 overlapped", name) for name in ("1-15", "16-20", "all")
    ]
    last = values["steps"][-1]["scores"]  # type: ignore[index]
    (without, figures), (with_b, other) = ours(table)
    assert (without[1], with_b[1]) == ("without b", "with b")
    assert figures == [f"{last[part]['without_background']:.1f}" for part in ("old", "new", "all")]
    assert other == [f"{last[part]['with_background']:.1f}" for part in ("old", "new", "all")]


def test_unlike_averages_are_never_ranked_together() -> None:
    table = paper_table("voc", sort(run(), run("mib"), run("offline")))
    for (index, position), mark in marks(table).items():
        row = table.rows[index]
        assert row.labels[0] != "offline"
        assert row.labels[1] in ("with b", "without b")
        rivals = [
            other.cells[position].mean
            for other in table.rows
            if other.family == row.family and isinstance(other.cells[position], Value)
        ]
        if mark == "best":
            assert row.cells[position].mean == pytest.approx(max(rivals), abs=0.05)  # type: ignore[union-attr]
    assert any("Best and second are marked among rows of one average" in note for note in table.notes)
    assert any("TISS on VOC is unclear" in note for note in table.notes)


def test_tasks_of_one_method_share_a_row() -> None:
    other = run(task="15-5", groups=(tuple(range(1, 16)), tuple(range(16, 21))))
    table = paper_table("voc", sort(run(), other))
    assert len(ours(table)) == 2
    assert len(table.columns) == 6
    assert all("None" not in figures for _, figures in ours(table))


def test_classes_are_found_under_the_paper_s_short_names() -> None:
    values = run()
    table = paper_table("15-1o", sort(values))
    names = [column.name for column in table.columns]
    (_, figures), (_, other) = ours(table)
    iou = values["steps"][-1]["iou"]  # type: ignore[index]
    assert figures[names.index("mbike")] == f"{iou['motorbike']:.1f}"
    assert figures[names.index("tv")] == f"{iou['tvmonitor']:.1f}"
    assert other[names.index("tv")] == "None"
    assert other[names.index("all")] != "None"


def test_another_protocol_is_named() -> None:
    table = paper_table("voc", sort(run(), run(protocol="mib")))
    assert {labels[0] for labels, _ in ours(table)} == {"TISS", "TISS, protocol mib"}


def test_without_runs_the_whole_table_is_shown() -> None:
    table = paper_table("voc")
    assert len(table.columns) == 18
    assert ours(table) == []


def test_group_mean() -> None:
    scores = load_results([run()])[0].steps[-1]
    values = list(scores.iou.values())
    assert group_mean(scores, "20", True) == values[20]
    assert group_mean(scores, "16-20", True) == pytest.approx(sum(values[16:]) / 5)
    assert group_mean(scores, "1-15", True) == pytest.approx(sum(values[:16]) / 16)
    assert group_mean(scores, "all", False) == pytest.approx(sum(values[1:]) / 20)
