"""The tables hold what the runs scored."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.report.fakes import GROUPS, results
from tiss.evaluation.scores import percent
from tiss.report.runs import Experiment, experiments, load_results
from tiss.report.table import Table, cell_text
from tiss.report.tables import class_table, final_table, forgetting_table, print_results, step_table

RUNS = [results(method) for method in ("ft", "mib", "tiss", "offline")]


@pytest.fixture
def experiment() -> Experiment:
    return experiments(load_results(RUNS))[0]


def column(table: Table, group: str, name: str) -> list[str]:
    (position,) = [i for i, c in enumerate(table.columns) if (c.group, c.name) == (group, name)]
    return [cell_text(row.cells[position]) for row in table.rows]


def test_final_table(experiment: Experiment) -> None:
    table = final_table(experiment)
    last = [run["steps"][-1]["scores"] for run in RUNS]
    for average, group in (
        ("with_background", "with background"),
        ("without_background", "without background"),
    ):
        for part in ("old", "new", "all", "harmonic"):
            assert column(table, group, part) == [percent(scores[part][average]) for scores in last]
        over = [percent(run["average"][average]) for run in RUNS[:3]]
        assert column(table, group, "over steps") == [*over, "–"]
    assert column(table, "old classes", "forgotten")[3] == "–"
    assert table.rows[3].family is None  # the upper bound competes with nobody


def test_step_table(experiment: Experiment) -> None:
    table = step_table(experiment)
    assert len(table.rows) == 3 * 3 + 1
    assert column(table, "with background", "new")[0] == "–"
    steps = [percent(step["scores"]["old"]["with_background"]) for step in RUNS[0]["steps"]]
    assert column(table, "with background", "old")[:3] == steps
    assert table.rows[-1].labels == ("offline", "all at once")


def test_class_and_forgetting_tables(experiment: Experiment) -> None:
    classes = class_table(experiment)
    assert [c.name for c in classes.columns] == RUNS[0]["classes"]
    assert column(classes, "step 1", "star")[1] == percent(RUNS[1]["steps"][-1]["iou"]["star"])
    lost = forgetting_table(experiment)
    assert lost is not None
    assert len(lost.columns) == len(GROUPS[0]) + len(GROUPS[1])
    assert column(lost, "step 0", "disc")[0] == percent(RUNS[0]["steps"][-1]["forgetting"]["disc"])
    assert len(lost.rows) == 3


def test_without_a_real_background_there_is_one_average() -> None:
    run = results(has_background=False)
    table = final_table(experiments(load_results([run]))[0])
    assert {column.group for column in table.columns} == {"without background", "old classes"}
    assert any("Channel 0 is no class" in note for note in table.notes)


def test_absent_classes_are_told() -> None:
    run = results()
    run["steps"][-1] |= {"absent": ["moon"]}
    table = final_table(experiments(load_results([run]))[0])
    assert "No true pixel in the test, left out of every mean: moon." in table.notes


def test_seeds_are_told() -> None:
    table = final_table(experiments(load_results([results(seed=0), results(seed=1)]))[0])
    assert "Mean ± sample deviation over 2 seeds." in table.notes
    assert "±" in cell_text(table.rows[0].cells[0])


def test_a_run_under_way_competes_with_nobody() -> None:
    short = results("mib")
    short |= {"finished": False, "steps": short["steps"][:1]}
    table = final_table(experiments(load_results([results(), short]))[0])
    assert {row.labels[0]: row.family for row in table.rows} == {"TISS": "all", "MiB (step 0 of 2)": None}


def test_print_results_fits_the_terminal() -> None:
    stream = io.StringIO()
    print_results(RUNS, Console(file=stream, width=80), classes=True)
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    text = stream.getvalue()
    for expected in ("after the last step", "step by step", "by class", "points lost", "offline"):
        assert expected in text
