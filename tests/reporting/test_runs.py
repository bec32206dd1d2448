"""Runs find their table, and seeds their series."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reporting.fakes import folder, results
from tiss.errors import TissError
from tiss.files import write_json
from tiss.reporting.runs import Value, experiments, find_runs, load_results
from tiss.reporting.settings import flatten


def test_seeds_form_a_series_and_methods_stay_apart() -> None:
    runs = [results(method, seed) for method in ("ft", "tiss") for seed in range(3)]
    (experiment,) = experiments(load_results(runs))
    assert [(series.label, len(series.results)) for series in experiment.series] == [("FT", 3), ("TISS", 3)]
    assert experiment.title == "shapes 4-2 overlapped, protocol paper"


def test_other_tasks_protocols_and_holdouts_never_share_a_table() -> None:
    runs = [results(), results(task="6-2"), results(protocol="mib"), results(holdout=0.2)]
    found = experiments(load_results(runs))
    assert len(found) == 4
    assert "20 % of the training set held out" in found[3].title


def test_variants_of_a_method_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    runs = [
        folder(tmp_path, results(seed=seed), tau=tau, signed=True) for tau in (1.0, 0.07) for seed in (0, 1)
    ]
    (experiment,) = experiments(load_results(runs))
    assert [series.label for series in experiment.series] == [
        "TISS (method.tau=1.0)",
        "TISS (method.tau=0.07)",
    ]
    assert [len(series.results) for series in experiment.series] == [2, 2]


def test_encoders_are_named_where_they_differ() -> None:
    (experiment,) = experiments(load_results([results(), results(encoder="resnet50")]))
    assert [series.label for series in experiment.series] == ["TISS (vit_demo_patch8)", "TISS (resnet50)"]


def test_an_unfinished_run_is_no_seed_of_a_finished_one() -> None:
    short = results(seed=1)
    short |= {"finished": False, "steps": short["steps"][:2]}
    (experiment,) = experiments(load_results([results(), short]))
    assert [series.label for series in experiment.series] == ["TISS", "TISS (step 1 of 2)"]
    assert not experiment.series[1].at_once


def test_methods_stand_in_their_usual_order_and_the_upper_bound_last() -> None:
    runs = [results(method) for method in ("offline", "tiss", "mine", "mib", "ft")]
    (experiment,) = experiments(load_results(runs))
    assert [series.method for series in experiment.series] == ["ft", "mib", "tiss", "mine", "offline"]


def test_values_over_seeds() -> None:
    assert Value.of([None]) is None
    assert str(Value.of([50.0])) == "50.0"
    assert str(Value.of([50.0, 52.0])) == "51.0 ± 1.4"


def test_forgetting_of_the_first_classes() -> None:
    (experiment,) = experiments(load_results([results("ft"), results("tiss"), results("offline")]))
    forgets, keeps, offline = (series.mean_forgetting() for series in experiment.series)
    assert forgets is not None
    assert keeps is not None
    assert forgets.mean > 60 > 20 > keeps.mean
    assert offline is None
    assert experiment.series[2].at_once


def test_folders_are_found_inside_a_grid(tmp_path: Path) -> None:
    runs = [folder(tmp_path, results(seed=seed)) for seed in (0, 1)]
    (tmp_path / "bases").mkdir()
    assert find_runs([tmp_path]) == sorted(runs)
    assert find_runs([runs[0], tmp_path]) == runs
    with pytest.raises(TissError, match="is no run folder and holds none"):
        find_runs([tmp_path / "bases"])


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(TissError, match=r"no results\.json"):
        load_results([tmp_path])
    write_json(tmp_path / "results.json", {"format": 2})
    with pytest.raises(TissError, match="format 1"):
        load_results([tmp_path])
    write_json(tmp_path / "results.json", results() | {"steps": []})
    with pytest.raises(TissError, match="no step is finished"):
        load_results([tmp_path])


def test_flatten() -> None:
    assert flatten({"a": {"b": {"c": 1}}, "d": [2]}) == {"a.b.c": 1, "d": [2]}
