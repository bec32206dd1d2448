"""The paper's tables, what is said about them, and our rows in them, never ranked against another average."""

from pathlib import Path
from typing import Any

import pytest

from tests.report.fakes import folder, results
from tiss.data.base import DATASETS
from tiss.data.benchmarks import VOC
from tiss.errors import TissError
from tiss.report import paper
from tiss.report.paper import Published
from tiss.report.runs import Experiment, Value, experiments, load_results
from tiss.report.tables import OURS, Table

OWN, NONE = "TISS paper", "not derivable"
PER_CLASS = ("19-1d", "19-1o", "15-5d", "15-5o", "15-1d", "15-1o")
NAMES = ("background", *DATASETS.get("voc").classes)
EVERY = [row for rows in paper.published().values() for row in rows]
GROUPS = (tuple(range(1, 16)), *((k,) for k in range(16, 21)))


def find(table: str, method: str, source: str, backbone: str) -> Published:
    asked = method, source, backbone
    (row,) = (r for r in paper.published()[table] if (r.method, r.source, r.backbone) == asked)
    return row


def run(method: str = "tiss", **others: Any) -> dict[str, Any]:
    return results(method, **{"groups": GROUPS, "classes": NAMES, "data": "voc", "task": "15-1"} | others)


def ade() -> dict[str, Any]:
    names = ("background", *DATASETS.get("ade20k").classes)
    groups = (tuple(range(1, 101)), tuple(range(101, 151)))
    return results(groups=groups, classes=names, data="ade20k", task="100-50", setup="disjoint")


def loaded(*runs: Any) -> list[Experiment]:
    return experiments(load_results(runs))


def ours(table: Table) -> list[tuple[tuple[str, ...], list[str]]]:
    return [(row.labels, [str(cell) for cell in row.cells]) for row in table.rows if row.labels[2] == OURS]


def test_every_value_is_there():
    assert sum(len(row.figures) for row in EVERY) == 1914
    assert [*paper.published()][:3] == ["voc", "ade", "ablation"]
    assert find("voc", "TISS", OWN, "ViT-small").figures["15-1", "overlapped", "all"] == 72.1
    names = ("voc", "15-1o", "ablation", "cityscapes")
    assert [paper.dataset_of(name) for name in names] == ["voc", "voc", "ade20k", "cityscapes"]
    assert "15-1 overlapped" in paper.caption_of("15-1o")
    steps = ["1-14", "15", "16", "17", "18", "19", "15-19", "all"]
    assert paper.blocks_of("cityscapes") == {("14-1", "unstated"): steps}
    assert next(iter(paper.blocks_of("voc"))) == ("19-1", "disjoint")
    assert paper.blocks_of("ade")["100-50", "disjoint"] == ["1-100", "101-150", "all"]
    with pytest.raises(TissError, match="'voc'"):
        paper.blocks_of("vox")


def class_means(row: Published) -> tuple[float, float, float, float]:
    """Headline and per-class mean of the old classes, then of all."""
    (block,) = {(task, setup) for task, setup, _ in row.figures}
    old = int(block[0].split("-")[0])
    classes = [value for (_, _, group), value in row.figures.items() if group[0].isalpha() and group != "all"]
    assert len(classes) == 20
    headline = row.figures[(*block, f"1-{old}")], row.figures[(*block, "all")]
    return headline[0], sum(classes[:old]) / old, headline[1], sum(classes) / 20


@pytest.mark.parametrize("table", PER_CLASS)
def test_averages_follow_from_the_values_of_the_classes(table: str):
    resnets = [find(table, method, "MiB paper", "ResNet-101") for method in ("FT", "MiB")]
    for row in (*resnets, find(table, "FT", OWN, "ViT-small")):
        old, old_mean, everything, mean = class_means(row)
        assert row.averaging["average"] == "without b"
        assert (old, everything) == (pytest.approx(old_mean, abs=0.1), pytest.approx(mean, abs=0.1))
    unlike = {"TISS": ("unclear", 89, 94), "MiB": (NONE, 113, 200), "offline": (NONE, 40, 78)}
    for method, (average, low, high) in unlike.items():
        row = find(table, method, OWN, "ViT-small")
        _, _, everything, mean = class_means(row)
        assert row.averaging["average"] == average
        assert low < 21 * everything - 20 * mean < high  # the background that would have to be added


def test_notes_name_averages_faults_and_cells_that_differ_between_tables():
    notes = paper.notes_on(paper.published()["voc"], [("15-1", "overlapped")])
    shown = " ".join(notes)
    assert "56.4 from its own 64.9 and 30.7" in shown and "SDR paper are with b" in shown
    assert "15-5 disjoint" not in shown
    assert [note for note in notes if " here, " in note] == [
        "TISS ViT-small (TISS paper) 15-1 overlapped, 1-15: 78.9 here, 78.7 in 15-1o.",
        "TISS ViT-small (TISS paper) 15-1 overlapped, 16-20: 51.7 here, 51.1 in 15-1o.",
    ]
    notes = paper.notes_on(paper.published()["ade-base"], paper.blocks_of("ade-base"))
    assert sum(" here, " in note for note in notes) == 9
    assert all(row.averaging["why"] for row in EVERY)


@pytest.mark.parametrize(
    ("changed", "tables"),
    [
        ({}, ["voc", "15-1o"]),
        ({"task": "10-1"}, []),
        ({"holdout": 0.2}, []),  # not the test set
        ({"classes": ("background", *reversed(VOC.classes))}, []),  # other classes are old
        ({"data": "shapes", "task": "4-2"}, []),
    ],
)
def test_runs_find_the_tables_they_have_a_place_in(changed: dict[str, Any], tables: list[str]):
    assert paper.fitting_tables(loaded(run(**changed))) == tables


def test_both_averages_are_in_the_paper_s_columns():
    values = run()
    table = paper.paper_table("voc", loaded(values))
    names = [(column.group, column.name) for column in table.columns]
    assert names == [("15-1 overlapped", name) for name in ("1-15", "16-20", "all")]
    last = values["steps"][-1]["scores"]
    for (labels, figures), average in zip(ours(table), ("without", "with"), strict=True):
        assert labels[1] == f"{average} b"
        assert figures == [f"{last[part][f'{average}_background']:.1f}" for part in ("old", "new", "all")]
    whole = paper.paper_table("voc")
    assert len(whole.columns) == 18 and ours(whole) == []


def test_unlike_averages_are_never_ranked_together():
    table = paper.paper_table("voc", loaded(run(), run("mib"), run("offline")))
    for (index, position), mark in table.marks.items():
        row = table.rows[index]
        assert row.labels[0] != "offline" and row.labels[1] in ("with b", "without b")
        cells = [one.cells[position] for one in table.rows if one.family == row.family]
        if mark == "best":
            best = max(cell.mean for cell in cells if isinstance(cell, Value))
            assert row.cells[position].mean == pytest.approx(best, abs=0.05)  # type: ignore[union-attr]
    table = paper.paper_table("ablation", loaded(ade()))
    families = {row.family for row in table.rows if row.labels[2] == OURS}
    assert families and families.isdisjoint(row.family for row in table.rows if row.labels[2] != OURS)
    ranked = {name: bool(paper.paper_table(name).marks) for name in ("ablation", "ade-base", "swin")}
    assert ranked == {"ablation": True, "ade-base": False, "swin": False}  # whose columns agree throughout


def test_a_method_has_one_row_per_network_over_all_tasks():
    other = run(task="15-5", groups=(tuple(range(1, 16)), tuple(range(16, 21))))
    table = paper.paper_table("voc", loaded(run(), other))
    assert (len(ours(table)), len(table.columns)) == (2, 6)
    assert all("None" not in figures for _, figures in ours(table))
    found = loaded(run(), run(encoder="resnet50"), other)
    assert {series.label for series in found[0].series} == {"TISS (vit_demo_patch8)", "TISS (resnet50)"}
    rows = ours(paper.paper_table("voc", found))
    assert {labels[0] for labels, _ in rows} == {"TISS"}  # the encoder has a column of its own
    assert all("None" not in figures for labels, figures in rows if labels[4] == "vit_demo_patch8")
    protocols = paper.paper_table("voc", loaded(run(), run(protocol="mib")))
    assert {labels[0] for labels, _ in ours(protocols)} == {"TISS", "TISS, protocol mib"}


def test_classes_are_found_under_the_paper_s_short_names():
    values = run()
    table = paper.paper_table("15-1o", loaded(values))
    names = [column.name for column in table.columns]
    (_, figures), (_, other) = ours(table)
    iou = values["steps"][-1]["iou"]
    for short, name in (("mbike", "motorbike"), ("tv", "tvmonitor")):
        assert figures[names.index(short)] == f"{iou[name]:.1f}"
    assert other[names.index("tv")] == "None" != other[names.index("all")]


def test_image_sizes_are_noted_under_the_table(tmp_path: Path):
    def notes(*configs: str) -> list[str]:
        runs = []
        for seed, config in enumerate(configs):
            runs.append(folder(tmp_path, run(seed=seed)))
            with (runs[-1] / "config.yaml").open("a") as file:
                file.write(config)
        return [note for note in paper.paper_table("voc", loaded(*runs)).notes if note.startswith("Ours: ")]

    own, other = "data: {resize: 336, crop: 336}\n", "data: {crop: 512}\neval: {size: 448}\n"
    assert notes("") == []  # nothing was kept
    (note,) = notes(own)
    assert "resized to 336, crops of 336" in note and [note] == notes(own, own)
    (both,) = notes(own, other)
    assert "resized to 336" in both and "crops of 512, tested at 448" in both
