"""Runs find their table, and seeds their series."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.report.fakes import folder, results, sort
from tiss.errors import TissError
from tiss.report.runs import Value, experiments, find_runs, load_results
from tiss.report.tables import final_table


def test_seeds_form_a_series_and_methods_stay_apart():
    runs = [results(method, seed) for method in ("ft", "tiss") for seed in range(3)]
    experiment = sort(*runs)
    assert [(series.label, len(series.results)) for series in experiment.series] == [("FT", 3), ("TISS", 3)]
    assert experiment.title == "shapes 4-2 overlapped, protocol paper"


def test_other_tasks_protocols_and_holdouts_never_share_a_table():
    runs = [results(), results(task="6-2"), results(protocol="mib"), results(holdout=0.2)]
    found = experiments(load_results(runs))
    assert len(found) == 4
    assert "20 % of the training set held out" in found[3].title


def labels(runs: list[Any]) -> list[str]:
    experiment = sort(*runs)
    found = [series.label for series in experiment.series]
    assert len(set(found)) == len(found)
    return found


def test_lists_and_trial_tests_are_named_and_never_pooled() -> None:
    runs = [results(), results(seed=1, lists="100-10"), results(seed=2, eval_images=200)]
    titles = [one.title for one in experiments(load_results(runs))]
    assert len(titles) == 3
    assert "overlapped, lists 100-10," in titles[1]
    assert "tested on 200 images only" in titles[2]


def test_random_orders_of_the_classes_are_pooled_like_seeds() -> None:
    other = ("background", *reversed(results()["classes"][1:]))
    runs = [results(order="random:0"), results(order="random:1", classes=other), results(order="bar,star")]
    pooled, given = experiments(load_results(runs))
    assert "random class orders" in pooled.title and "random" not in given.title
    assert [len(one.results) for one in pooled.series] == [2]


def test_variants_are_told_apart_by_what_is_not_the_methods_default(tmp_path: Path):
    own: list[dict[str, Any]] = [{"tau": 0.1, "signed": True, "cd": 0.01}, {"cd": 10.0}, {"cd": 2.0}]
    own += [{"tau": 0.1}, {"divide": False}, {}]
    runs = [folder(tmp_path, results("mib+cd", seed), **one) for one in own for seed in (0, 1)]
    runs += [folder(tmp_path, results("mib+ct"), ct_when=when) for when in ("base", "always")]
    told = ["", " (cd 0.01, signed, tau 0.1)", " (cd 2)", " (cd 10)", " (not divide)", " (tau 0.1)"]
    assert labels(runs) == [*(f"MiB+cd{text}" for text in told), "MiB+ct", "MiB+ct (ct_when base)"]
    # a series alone needs no distinction
    assert labels([folder(tmp_path, results(), tau=0.1), folder(tmp_path, results("mib"))]) == ["MiB", "TISS"]


def test_encoders_are_named_where_they_differ():
    assert labels([results(), results(encoder="resnet50")]) == ["TISS (resnet50)", "TISS (vit_demo_patch8)"]
    both = labels([results(), results("mib", encoder="resnet50")])
    assert both == ["MiB (resnet50)", "TISS (vit_demo_patch8)"]
    assert labels([results(), results(decoder="deeplabv3")]) == ["TISS (deeplabv3)", "TISS (linear)"]
    assert labels([results(), results(encoder="resnet50", decoder="deeplabv3")])[0] == "TISS (resnet50)"


def test_training_that_follows_from_the_encoder_is_not_listed(tmp_path: Path):
    def trained(encoder: str, train: dict[str, Any], **settings: Any) -> Path:
        path = folder(tmp_path, results(encoder=encoder), **settings)
        config = yaml.safe_load((path / "config.yaml").read_text())
        config |= {"model": {"encoder": encoder}, "train": train}
        (path / "config.yaml").write_text(yaml.safe_dump(config))
        return path

    one = trained("vit_demo_patch8", {"lr": 0.001, "clip": 1.0})
    other = trained("resnet50", {"lr": 0.01, "optimizer": "sgd"}, tau=0.1)
    assert labels([one, other]) == ["TISS (resnet50)", "TISS (vit_demo_patch8)"]
    third = trained("resnet50", {"lr": 0.02, "optimizer": "sgd"}, tau=0.1)
    fourth = trained("resnet50", {"lr": 0.01, "optimizer": "sgd"})
    changed = ["", ", tau 0.1, lr 0.01", ", tau 0.1, lr 0.02"]
    expected = [*(f"TISS (resnet50{text})" for text in changed), "TISS (vit_demo_patch8)"]
    assert labels([one, other, third, fourth]) == expected


def test_labels_stay_unique_without_settings_and_for_unknown_methods(tmp_path: Path):
    assert labels([folder(tmp_path, results(), tau=1.0), results()]) == ["TISS", "TISS (settings not kept)"]
    runs = [folder(tmp_path, results("mine"), strength=strength) for strength in (2, 1)]
    assert labels(runs) == ["mine (strength 1)", "mine (strength 2)"]


def test_an_unfinished_run_is_no_seed_of_a_finished_one():
    short = results(seed=1)
    short |= {"finished": False, "steps": short["steps"][:2]}
    experiment = sort(results(), short)
    assert [series.label for series in experiment.series] == ["TISS", "TISS (step 1 of 2)"]
    assert not experiment.series[1].at_once


def test_methods_stand_in_their_usual_order_and_the_upper_bound_last():
    runs = [results(method) for method in ("offline", "tiss", "mine", "mib", "ft")]
    experiment = sort(*runs)
    assert [series.method for series in experiment.series] == ["ft", "mib", "tiss", "mine", "offline"]


def test_values_over_seeds():
    assert [str(Value.of(values)) for values in ([None], [50.0], [50.0, 52.0])] == [
        "None",
        "50.0",
        "51.0 ± 1.4",
    ]


def test_forgetting_of_the_first_classes():
    experiment = sort(results("ft"), results("tiss"), results("offline"))
    forgets, keeps, offline = (one.forgetting(*one.first.values["classes"][1:5]) for one in experiment.series)
    assert forgets.mean > 60 > 20 > keeps.mean and offline is None
    assert experiment.series[2].at_once


def test_folders_are_found_inside_grids_and_folders_of_grids(tmp_path: Path):
    (tmp_path / "grid" / "bases").mkdir(parents=True)
    alone, within = folder(tmp_path, results(seed=0)), folder(tmp_path / "grid", results(seed=1))
    folder(tmp_path / "grid" / "bases", results(seed=2))
    assert find_runs([tmp_path]) == [alone, within]
    assert find_runs([within, tmp_path / "grid"]) == [within]  # a shared first step is no run
    (tmp_path / "empty").mkdir()
    with pytest.raises(TissError, match="is no run folder and holds none"):
        find_runs([tmp_path / "empty"])


def test_a_run_done_twice_counts_once():
    experiment = sort(*(results("mib", seed) for seed in (0, 1, 0)))
    assert [result.values["seed"] for result in experiment.series[0].results] == [0, 1]
    assert experiment.repeats == 1
    assert any(note.startswith("Left out: 1") for note in final_table(experiment).notes)
