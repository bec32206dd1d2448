"""The line that says how runs were trained names every row that was trained otherwise."""

from __future__ import annotations

from types import SimpleNamespace

from tiss.report.recipe import recipe_lines

USUAL = {
    "train.recipe": "tuned",
    "train.lr": 0.001,
    "train.step_lr": 0.0002,
    "train.epochs": 4,
    "train.step_epochs": 10,
}


def series(label: str, at_once: bool = False, **changed: object) -> SimpleNamespace:
    settings = USUAL | {f"train.{name}": value for name, value in changed.items()}
    return SimpleNamespace(label=label, at_once=at_once, first=SimpleNamespace(settings=settings))


def test_rows_that_were_trained_otherwise_are_named_with_what_differs():
    rows = [
        series("recall", step_lr=0.0005, step_epochs=5),
        series("FT"),
        series("MiB"),
        series("offline", at_once=True),
    ]
    assert recipe_lines(rows) == [
        "recipe tuned · learning rate 0.001, in later steps 0.0002 · epochs 4, in later steps 10",
        "recall: learning rate 0.001, in later steps 0.0005 · epochs 4, in later steps 5",
    ]  # offline has no later steps: it differs in nothing


def test_rows_with_the_same_difference_share_a_line():
    rows = [series("FT"), series("MiB"), series("A", epochs=9), series("B", epochs=9), series("LwF")]
    assert recipe_lines(rows)[1:] == ["A, B: epochs 9, in later steps 10"]


def test_offline_with_epochs_of_its_own_is_named():
    assert recipe_lines([series("FT"), series("MiB"), series("offline", at_once=True, epochs=40)])[1:] == [
        "offline: epochs 40"
    ]


def test_runs_without_settings_have_no_line():
    bare = SimpleNamespace(label="FT", at_once=False, first=SimpleNamespace(settings={}))
    assert recipe_lines([bare]) == []
