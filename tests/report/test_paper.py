"""The paper's tables, what is said about them, and our rows in them, never ranked against another average."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report.fakes import folder, results
from tiss.data.base import DATASETS
from tiss.data.voc import CLASSES
from tiss.errors import TissError
from tiss.report.paper import (
    Published,
    blocks_of,
    caption_of,
    dataset_of,
    fitting_tables,
    group_mean,
    notes_on,
    paper_table,
    published,
    rows_of,
    table_names,
)
from tiss.report.runs import Experiment, Value, experiments, load_results
from tiss.report.tables import OURS, Table

OWN = "TISS paper"
PER_CLASS = ("19-1d", "19-1o", "15-5d", "15-5o", "15-1d", "15-1o")
NAMES = ("background", *CLASSES)
GROUPS = (tuple(range(1, 16)), *((k,) for k in range(16, 21)))


def find(table: str, method: str, source: str, backbone: str) -> Published:
    (row,) = [r for r in rows_of(table) if (r.method, r.source, r.backbone) == (method, source, backbone)]
    return row


def run(method: str = "tiss", **others: Any) -> dict[str, Any]:
    return results(method, **{"groups": GROUPS, "classes": NAMES, "data": "voc", "task": "15-1"} | others)


def ade() -> dict[str, Any]:
    names = ("background", *DATASETS.get("ade20k").classes)
    groups = (tuple(range(1, 101)), tuple(range(101, 151)))
    return results(groups=groups, classes=names, data="ade20k", task="100-50", setup="disjoint")


def sort(*runs: Any) -> list[Experiment]:
    return experiments(load_results(runs))


def ours(table: Table) -> list[tuple[tuple[str, ...], list[str]]]:
    return [(row.labels, [str(cell) for cell in row.cells]) for row in table.rows if row.labels[2] == OURS]


def test_every_value_is_there() -> None:
    assert sum(len(row.figures) for row in published()) == 1914
    assert table_names()[:3] == ["voc", "ade", "ablation"]
    assert find("voc", "TISS", OWN, "ViT-small").figures["15-1", "overlapped", "all"] == 72.1
    names = ("voc", "15-1o", "ablation", "cityscapes")
    assert [dataset_of(name) for name in names] == ["voc", "voc", "ade20k", "cityscapes"]
    assert "15-1 overlapped" in caption_of("15-1o")
    steps = ["1-14", "15", "16", "17", "18", "19", "15-19", "all"]
    assert blocks_of("cityscapes") == {("14-1", "unstated"): steps}
    assert next(iter(blocks_of("voc"))) == ("19-1", "disjoint")
    assert blocks_of("ade")["100-50", "disjoint"] == ["1-100", "101-150", "all"]
    with pytest.raises(TissError, match="'voc'"):
        rows_of("vox")


def class_means(row: Published) -> tuple[float, float, float, float]:
    """Headline and per-class mean of the old classes, then of all."""
    (block,) = {(task, setup) for task, setup, _ in row.figures}
    old = int(block[0].split("-")[0])
    classes = [value for (_, _, group), value in row.figures.items() if group[0].isalpha() and group != "all"]
    assert len(classes) == 20
    headline = row.figures[(*block, f"1-{old}")], row.figures[(*block, "all")]
    return headline[0], sum(classes[:old]) / old, headline[1], sum(classes) / 20


@pytest.mark.parametrize("table", PER_CLASS)
def test_averages_follow_from_the_values_of_the_classes(table: str) -> None:
    for row in (
        find(table, "FT", "MiB paper", "ResNet-101"),
        find(table, "MiB", "MiB paper", "ResNet-101"),
        find(table, "FT", OWN, "ViT-small"),
    ):
        old, old_mean, everything, mean = class_means(row)
        assert row.average == "without b"
        assert (old, everything) == (pytest.approx(old_mean, abs=0.1), pytest.approx(mean, abs=0.1))
    for method, average, low, high in (
        ("TISS", "unclear", 89, 94),
        ("MiB", "not derivable", 113, 200),
        ("offline", "not derivable", 40, 78),
    ):
        row = find(table, method, OWN, "ViT-small")
        _, _, everything, mean = class_means(row)
        assert row.average == average
        assert low < 21 * everything - 20 * mean < high  # the background that would have to be added


def test_rows_with_background_combine_so() -> None:
    rows = [
        row for row in rows_of("voc") if row.source in ("SDR paper", "PLOP paper") and row.method != "offline"
    ]
    assert rows and {row.average for row in rows} == {"with b"}
    for row in rows:
        for task in ("15-5", "15-1"):
            if (task, "overlapped", "all") in row.figures:
                old, new, everything = (row.figures[task, "overlapped", g] for g in ("1-15", "16-20", "all"))
                assert everything == pytest.approx((16 * old + 5 * new) / 21, abs=0.12)
    for row in rows_of("cityscapes"):
        old, new, everything = (row.figures["14-1", "unstated", group] for group in ("1-14", "15-19", "all"))
        count = 15 if row.average == "with b" else 14
        assert everything == pytest.approx((count * old + 5 * new) / (count + 5), abs=0.1)


def test_notes_name_averages_faults_and_cells_that_differ_between_tables() -> None:
    notes = notes_on(rows_of("voc"), [("15-1", "overlapped")])
    shown = " ".join(notes)
    assert "56.4 from its own 64.9 and 30.7" in shown and "SDR paper are with b" in shown
    assert "15-5 disjoint" not in shown
    assert [note for note in notes if " here, " in note] == [
        "TISS ViT-small (TISS paper) 15-1 overlapped, 1-15: 78.9 here, 78.7 in 15-1o.",
        "TISS ViT-small (TISS paper) 15-1 overlapped, 16-20: 51.7 here, 51.1 in 15-1o.",
    ]
    assert sum(" here, " in note for note in notes_on(rows_of("ade-base"), blocks_of("ade-base"))) == 9
    assert all(row.averaging["why"] for row in published())


@pytest.mark.parametrize(
    ("changed", "tables"),
    [
        ({}, ["voc", "15-1o"]),
        ({"task": "10-1"}, []),
        ({"holdout": 0.2}, []),  # not the test set
        ({"classes": ("background", *reversed(CLASSES))}, []),  # other classes are old
        ({"data": "shapes"}, []),
    ],
)
def test_runs_find_the_tables_they_have_a_place_in(changed: dict[str, Any], tables: list[str]) -> None:
    if changed.get("data") != "shapes":
        assert fitting_tables(sort(run(**changed))) == tables
    else:
        assert fitting_tables(sort(results())) == tables


def test_both_averages_are_in_the_paper_s_columns() -> None:
    values = run()
    table = paper_table("voc", sort(values))
    names = [(column.group, column.name) for column in table.columns]
    assert names == [("15-1 overlapped", name) for name in ("1-15", "16-20", "all")]
    last = values["steps"][-1]["scores"]
    for (labels, figures), average in zip(ours(table), ("without", "with"), strict=True):
        assert labels[1] == f"{average} b"
        assert figures == [f"{last[part][f'{average}_background']:.1f}" for part in ("old", "new", "all")]
    whole = paper_table("voc")
    assert len(whole.columns) == 18 and ours(whole) == []


def test_unlike_averages_are_never_ranked_together() -> None:
    table = paper_table("voc", sort(run(), run("mib"), run("offline")))
    for (index, position), mark in table.marks.items():
        row = table.rows[index]
        assert row.labels[0] != "offline" and row.labels[1] in ("with b", "without b")
        cells = [one.cells[position] for one in table.rows if one.family == row.family]
        if mark == "best":
            best = max(cell.mean for cell in cells if isinstance(cell, Value))
            assert row.cells[position].mean == pytest.approx(best, abs=0.05)  # type: ignore[union-attr]
    table = paper_table("ablation", sort(ade()))
    families = {row.family for row in table.rows if row.labels[2] == OURS}
    assert families and families.isdisjoint(row.family for row in table.rows if row.labels[2] != OURS)


def test_a_method_has_one_row_per_network_over_all_tasks() -> None:
    other = run(task="15-5", groups=(tuple(range(1, 16)), tuple(range(16, 21))))
    table = paper_table("voc", sort(run(), other))
    assert (len(ours(table)), len(table.columns)) == (2, 6)
    assert all("None" not in figures for _, figures in ours(table))
    found = sort(run(), run(encoder="resnet50"), other)
    assert {series.label for series in found[0].series} == {"TISS (vit_demo_patch8)", "TISS (resnet50)"}
    rows = ours(paper_table("voc", found))
    assert {labels[0] for labels, _ in rows} == {"TISS"}  # the encoder has a column of its own
    assert all("None" not in figures for labels, figures in rows if labels[4] == "vit_demo_patch8")
    protocols = paper_table("voc", sort(run(), run(protocol="mib")))
    assert {labels[0] for labels, _ in ours(protocols)} == {"TISS", "TISS, protocol mib"}


def test_classes_are_found_under_the_paper_s_short_names() -> None:
    values = run()
    table = paper_table("15-1o", sort(values))
    names = [column.name for column in table.columns]
    (_, figures), (_, other) = ours(table)
    iou = values["steps"][-1]["iou"]
    for short, name in (("mbike", "motorbike"), ("tv", "tvmonitor")):
        assert figures[names.index(short)] == f"{iou[name]:.1f}"
    assert other[names.index("tv")] == "None" != other[names.index("all")]


def test_group_mean() -> None:
    scores = load_results([run()])[0].steps[-1]
    values = list(scores.iou.values())
    assert group_mean(scores, "20", True) == values[20]
    assert group_mean(scores, "16-20", True) == pytest.approx(sum(values[16:]) / 5)
    assert group_mean(scores, "1-15", True) == pytest.approx(sum(values[:16]) / 16)
    assert group_mean(scores, "all", False) == pytest.approx(sum(values[1:]) / 20)


def columns_agree(row: Published) -> bool:
    """Whether old and new classes combine to `all`, and the steps' classes to the new ones."""
    for task, setup in {(task, setup) for task, setup, _ in row.figures}:
        found = {group: value for (t, s, group), value in row.figures.items() if (t, s) == (task, setup)}
        old = int(task.partition("-")[0])
        everything, first, new = (found.pop(group) for group in ("all", f"1-{old}", f"{old + 1}-150"))
        steps = list(found.values()) or [new]
        parts = (everything, (old * first + (150 - old) * new) / 150), (new, sum(steps) / len(steps))
        if any(abs(one - other) > 0.1 for one, other in parts):
            return False
    return True


def test_rows_of_an_unknown_average_are_ranked_only_where_their_table_agrees_with_itself() -> None:
    for name in ("ablation", "ade-base", "swin"):
        assert bool(paper_table(name).marks) == all(columns_agree(row) for row in rows_of(name))
    table = paper_table("ablation")
    (place,) = [i for i, c in enumerate(table.columns) if (c.group, c.name) == ("100-50 disjoint", "all")]
    best = [
        table.rows[row].labels[0] for (row, at), mark in table.marks.items() if (at, mark) == (place, "best")
    ]
    assert best == ["TISS"]


def test_image_sizes_are_noted_under_the_table(tmp_path: Path) -> None:
    def notes(*configs: str) -> list[str]:
        runs = []
        for seed, config in enumerate(configs):
            runs.append(folder(tmp_path, run(seed=seed)))
            with (runs[-1] / "config.yaml").open("a") as file:
                file.write(config)
        return [note for note in paper_table("voc", sort(*runs)).notes if note.startswith("Ours: ")]

    own, other = "data: {resize: 336, crop: 336}\n", "data: {crop: 512}\neval: {size: 448}\n"
    assert notes("") == []  # nothing was kept
    (note,) = notes(own)
    assert "resized to 336, crops of 336" in note and [note] == notes(own, own)
    (both,) = notes(own, other)
    assert "resized to 336" in both and "crops of 512, tested at 448" in both
