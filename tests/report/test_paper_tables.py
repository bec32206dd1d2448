"""Our rows in the paper's tables: in the right columns, and never ranked against another average."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.fakes import folder, results
from tiss.data.base import DATASETS
from tiss.data.voc import CLASSES
from tiss.report.paper import Published, rows_of
from tiss.report.paper_tables import OURS, fitting_tables, group_mean, paper_table
from tiss.report.runs import Experiment, Value, experiments, load_results
from tiss.report.table import Table, marks

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


def test_a_method_with_two_networks_on_one_task_has_one_name_for_each_row() -> None:
    """The encoder has a column: in the name it would part the tasks of one method."""
    other = run(task="15-5", groups=(tuple(range(1, 16)), tuple(range(16, 21))))
    found = sort(run(), run(encoder="resnet50"), other)
    assert {series.label for series in found[0].series} == {"TISS (vit_demo_patch8)", "TISS (resnet50)"}
    rows = ours(paper_table("voc", found))
    assert {labels[0] for labels, _ in rows} == {"TISS"}
    both = [figures for labels, figures in rows if labels[4] == "vit_demo_patch8"]
    assert all("None" not in figures for figures in both)


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


def columns_agree(row: Published, tolerance: float = 0.1) -> bool:
    """Whether old and new classes combine to `all`, and the steps' classes to the new ones."""
    for task, setup in {(task, setup) for task, setup, _ in row.figures}:
        found = {group: value for (t, s, group), value in row.figures.items() if (t, s) == (task, setup)}
        old = int(task.partition("-")[0])
        everything, first, new = (found.pop(group) for group in ("all", f"1-{old}", f"{old + 1}-150"))
        steps = list(found.values()) or [new]
        parts = (everything, (old * first + (150 - old) * new) / 150), (new, sum(steps) / len(steps))
        if any(abs(one - other) > tolerance for one, other in parts):
            return False
    return True


def test_rows_of_an_unknown_average_are_ranked_only_where_their_table_agrees_with_itself() -> None:
    for name in ("ablation", "ade-base", "swin"):
        ranked = marks(paper_table(name))
        assert bool(ranked) == all(columns_agree(row) for row in rows_of(name))
    table = paper_table("ablation")
    assert set(marks(table).values()) == {"best", "second"}
    places = {(column.group, column.name): i for i, column in enumerate(table.columns)}
    best = [
        row
        for (row, place), mark in marks(table).items()
        if place == places["100-50 disjoint", "all"] and mark == "best"
    ]
    assert [table.rows[row].labels[0] for row in best] == ["TISS"]
    assert any("they share one" in note for note in table.notes)
    assert any("not ranked" in note for note in paper_table("swin").notes)


def test_our_rows_are_not_ranked_with_rows_of_an_unknown_average() -> None:
    names = ("background", *DATASETS.get("ade20k").classes)
    groups = (tuple(range(1, 101)), tuple(range(101, 151)))
    values = results(groups=groups, classes=names, data="ade20k", task="100-50", setup="disjoint")
    table = paper_table("ablation", sort(values))
    families = {row.family for row in table.rows if row.labels[2] == OURS}
    assert families.isdisjoint(row.family for row in table.rows if row.labels[2] != OURS)


def test_sizes_of_pictures_stand_under_the_table(tmp_path: Path) -> None:
    def notes(*configs: str) -> list[str]:
        runs = []
        for seed, config in enumerate(configs):
            runs.append(folder(tmp_path, run(seed=seed)))
            with (runs[-1] / "config.yaml").open("a") as file:
                file.write(config)
        found = paper_table("voc", experiments(load_results(runs))).notes
        return [note for note in found if note.startswith("Ours: ")]

    theirs = "; the paper: original size, crops of 512."
    own = "data: {name: voc, resize: 336, crop: 336}\n"
    assert notes("") == []  # nothing was kept
    assert notes(own) == [f"Ours: pictures resized to 336, crops of 336{theirs}"]
    assert notes(own, own) == notes(own)
    other = "data: {name: voc, crop: 512}\neval: {size: 448}\n"
    both = "pictures resized to 336, crops of 336 or pictures at their own size, crops of 512, tested at 448"
    assert notes(own, other) == [f"Ours: {both}{theirs}"]
    assert not any(note.startswith("Ours: ") for note in paper_table("voc").notes)
