"""Equal effort: the same number of trials for each method, on held-out images only, resumed and written as a grid."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tiss.cli.grid import load_table
from tiss.cli.main import main
from tiss.config import RunConfig, from_mapping
from tiss.data.folder import Folder
from tiss.engine import tune
from tiss.engine.grid import expand
from tiss.engine.results import read_results
from tiss.engine.run import Run
from tiss.engine.tune import draw, knobs_of, plan_trials
from tiss.errors import TissError
from tiss.methods.base import METHODS, settings_from


@pytest.fixture
def table(tiny_folder: Path) -> dict:
    return {
        "about": "toy",
        "defaults": {
            "data": {"name": "folder", "root": str(tiny_folder), "crop": 32},
            "task": "2-2",
            "order": "random:0..1",
            "model": {"encoder": "vit_micro_patch8"},
            "train": {"recipe": "tuned", "epochs": 1, "batch": 4, "device": "cpu"},
        },
        "runs": [{"method": "mib"}, {"method": "lda"}, {"method": "offline"}],
        "seeds": [3, 4],
        "tune": {"trials": 3},
    }


def config_of(method: str, **train: float) -> RunConfig:
    config = from_mapping(RunConfig, {"method": method, "train": {"step_lr": 1e-3, **train}})
    return replace(config, method=settings_from(config.method))


def test_the_command(
    table: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    read, splits = Folder.read, set()
    monkeypatch.setattr(Folder, "read", lambda self, split, id: (splits.add(split), read(self, split, id))[1])
    table["defaults"]["train"]["loader"] = "memory"  # in this process
    file.write_text(yaml.safe_dump(table))
    words = ["tune", str(file), "--holdout", "0.3", "--out", str(out)]
    assert main(words) == 0
    assert splits == {"train"}
    printed = capsys.readouterr()
    assert "6 of 6 runs done" in printed.err and " left\n" in printed.err
    assert printed.out.count("as the grid has it") == printed.out.count("← best") == 2

    found = json.loads((out / "tune.json").read_text())
    assert [(one["method"], len(one["trials"])) for one in found["methods"]] == [("mib", 3), ("lda", 3)]
    held = set(found["images"]["folder"])
    assert held <= set(Folder(root=table["defaults"]["data"]["root"]).ids("train")) and len(held) == 3
    for method in found["methods"]:
        scores = {}
        for trial in method["trials"]:
            results = read_results(out / trial["run"] / "results.json")
            assert (results["holdout"], results["seed"], results["order"]) == (0.3, 3, "random:0")
            assert trial["miou"] == results["steps"][-1]["scores"]["all"]["with_background"]
            scores[json.dumps(trial["settings"])] = trial["miou"]
        assert method["trials"][0]["settings"] == {}
        assert scores[json.dumps(method["found"])] == max(scores.values())

    page = (out / "tune.html").read_text()
    assert all(id in page for id in held) and page.count("<svg") == 2

    # all trials are recognised
    folders = {path: path.stat().st_mtime_ns for path in out.glob("*/metrics.jsonl")}
    assert main(words) == 0
    assert "6 of 6 runs done" in capsys.readouterr().err.splitlines()[0]
    assert folders == {path: path.stat().st_mtime_ns for path in out.glob("*/metrics.jsonl")}


def test_what_was_found_is_a_grid(table: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    searches = plan_trials(table, 0.3, None, tmp_path)
    monkeypatch.setattr(tune.Trial, "miou", property(lambda trial: 0.0 if not trial.knobs else 1.0))
    path = tmp_path / "tuned.yaml"
    path.write_text(yaml.safe_dump(tune.tuned_grid(table, searches)))
    tuned, before = expand(load_table(str(path))), expand(table)
    assert len(tuned) == len(before) == 12  # methods × seeds × orders
    for new, old in zip(tuned, before, strict=True):
        assert (new.method.name, new.seed, new.order) == (old.method.name, old.seed, old.order)
        assert new.holdout == 0.0
    knobs = searches[0].trials[1].knobs
    assert tuned[0].train.step_lr == knobs["train.step_lr"]
    assert tuned[0].method.distillation == knobs["method.distillation"]
    assert tuned[-1] == before[-1]  # offline: not tuned


def test_a_stopped_search_resumes_where_it_was(table: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file, done = tmp_path / "mine.yaml", []
    file.write_text(yaml.safe_dump({**table, "runs": [{"method": "ft"}]}))
    execute = Run.execute

    def stops(run: Run, **options: object) -> dict:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(run.folder.name)
        return execute(run, **options)

    words = ["tune", str(file), "--holdout", "0.3", "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patched:
        patched.setattr(Run, "execute", stops)
        assert main(words) == 130
    assert len(done) == 2  # the first step and the first trial
    again = []
    monkeypatch.setattr(
        Run, "execute", lambda run, **o: (again.append(run.folder.name), execute(run, **o))[1]
    )
    assert main(words) == 0
    assert len(again) == 2 and not set(again) & set(done)


def test_a_failed_trial_is_counted_and_not_chosen(
    table: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    execute, usual = Run.execute, 100.0

    def diverges(run: Run, **options: object) -> dict:
        if run.config.method.distillation != usual:
            raise TissError("the loss is nan")
        return execute(run, **options)

    monkeypatch.setattr(Run, "execute", diverges)
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump({**table, "runs": [{"method": "lwf"}], "tune": {"trials": 2}}))
    words = ["tune", str(file), "--holdout", "0.3", "--out", str(out)]
    assert main(words) == 0
    assert "1 of 2 trials failed" in capsys.readouterr().err
    (method,) = json.loads((out / "tune.json").read_text())["methods"]
    assert method["found"] == {} and method["trials"][1]["miou"] is None
    usual = -1.0
    assert main([*words[:-1], str(tmp_path / "other")]) == 2
    assert "no trial finished" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "flags", "message"),
    [
        ({}, "--holdout 0", "--holdout 0: give a share above 0"),
        ({}, "--trials 1", "--trials 1: give at least 2"),
        ({"defaults": {"base": "runs/x"}}, "", "base: that first step may have seen the held-out images"),
        ({"runs": [{"method": "offline"}]}, "", "nothing to tune"),
        ({"tune": {"trial": 3}}, "", "grid: tune"),
        ({"tune": {"knobs": ["mib"]}}, "", "grid: tune"),
        ({"tune": {"knobs": {"mib": {"train.step_lr": 3}}}}, "", "mib.train.step_lr takes numbers"),
        ({"tune": {"knobs": {"mbi": {}}}}, "", "did you mean 'mib'"),
        (
            {"tune": {"knobs": {"mib": {"train.step_lr": [1, 0.1]}}}},
            "",
            "mib.train.step_lr: give two numbers",
        ),
        ({"tune": {"knobs": {"mib": {"method.distil": [1, 2]}}}}, "", "did you mean 'method.distillation'"),
        (
            {"tune": {"knobs": {"mib": {"method.divide": [1, 2]}}}},
            "",
            "method.divide is True: a knob is a number",
        ),
        ({"tune": {"knobs": {"lda": {"method.width": [1, 2]}}}}, "", "different trials: widen them"),
    ],
)
def test_a_mistake_is_one_line(
    table: dict, changed: dict, flags: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(table | changed))
    assert main(["tune", str(file), "--out", str(out), *flags.split()]) == 2
    text = capsys.readouterr().err
    assert message in text and text.count("\n") == 1
    assert not out.exists()


def test_the_grid_s_knobs_replace_the_method_s():
    text = "{lda: {method.ridge: [1e-3, 1e-2]}}"  # which YAML reads as text
    assert knobs_of("lda", yaml.safe_load(text)) == {"method.ridge": (1e-3, 1e-2)}
    assert knobs_of("mib", yaml.safe_load(text)) == METHODS.get("mib").knobs


def test_all_methods_try_the_same_multiples_of_the_learning_rate():
    ft, mib = ([p["train.step_lr"] for p in draw(knobs_of(m, {}), config_of(m), 7)] for m in ("ft", "mib"))
    assert ft == mib and min(ft) < 3e-4 and max(ft) > 3e-3
    assert all(1e-4 <= value <= 1e-2 for value in ft)
    more = draw(knobs_of("mib", {}), config_of("mib"), 12)
    assert [point["train.step_lr"] for point in more][:7] == mib


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_knobs_that_make_different_trials(name: str):
    knobs = knobs_of(name, {})
    assert 1 <= len(knobs) <= 3
    for point in draw(knobs, config_of(name), tune.TRIALS - 1):
        settings = {key.partition(".")[2]: value for key, value in point.items() if key.startswith("method.")}
        settings_from({"name": name, **settings})
    trained = not METHODS.get(name).solved
    assert ("train.step_lr" in knobs) == trained
