"""Grids: expansion, shared first steps, skipping, failures, commands that are ordinary runs."""

import json
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import yaml

from tiss.cli.flags import parse_flags
from tiss.cli.grid import Options, load_table, tables, with_options
from tiss.cli.main import main
from tiss.cli.run import config_from, run_flags
from tiss.config import to_mapping
from tiss.engine import grid as grid_module
from tiss.engine.features import FeatureCache
from tiss.engine.grid import command_of, expand, is_finished, plan, work
from tiss.engine.progress import Reporter
from tiss.engine.run import Run, run_experiment
from tiss.engine.run_folder import read_config, run_name
from tiss.engine.session import Session
from tiss.errors import TissError


@pytest.fixture
def table(tiny_folder: Path) -> dict:
    return {
        "defaults": {
            "data": {"name": "folder", "root": str(tiny_folder), "crop": 32},
            "task": "2-2",
            "model": {"encoder": "vit_micro_patch8"},
            "train": {"recipe": "tuned", "epochs": 1, "batch": 4, "device": "cpu"},
        },
        "axes": {"method": ["ft", "mib", "tiss", "offline"]},
        "seeds": [0, 1],
    }


def few(table: dict, *runs: dict, **more: object) -> dict:
    """The table with these runs only, and one seed."""
    return {**table, "seeds": [0], "axes": {}, "runs": [*runs], **more}


def test_axes_are_combined_and_seeds_come_last(table: dict):
    configs = expand(table)
    assert [(c.method.name, c.seed) for c in configs[:3]] == [("ft", 0), ("ft", 1), ("mib", 0)]
    with pytest.raises(TissError, match="unknown key 'run'"):
        expand({"run": []})


@pytest.mark.parametrize(
    "changed",
    [
        *({"seeds": value} for value in (3, [], [0, 0], ["a"])),
        *({"runs": value} for value in (["ft", "mib"], {"method": "ft"}, [])),
        {"defaults": [1]},
        *({"axes": value} for value in (["task"], {"task": "4-2"}, {"method": []}, {"seed": [0, 1]})),
    ],
)
def test_a_part_of_the_wrong_shape_is_named(
    table: dict, changed: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """In the command too, before it sets the command line's data folder into it."""
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(table | changed))
    assert main(["grid", str(file), "--root", "there", "--list"]) == 2
    assert f"grid: {next(iter(changed))} " in capsys.readouterr().err


@pytest.mark.parametrize("method", ["analytic", "frozen"])
def test_runs_share_features_and_end_as_they_would_alone(table: dict, method: str, tmp_path: Path):
    still = {"encoder_lr": 0.0, "keep_features": True}
    cells = plan(few(table, {"method": method, "train": still}, axes={"task": ["2-2", "2-1"]}))
    grid, computed = tmp_path / "grid", Counter()

    def count(self: FeatureCache, path: Path, *rest: object) -> None:
        assert path.is_relative_to(grid / "features")
        computed[path] += 1
        keep(self, path, *rest)  # type: ignore[arg-type]

    keep = FeatureCache.keep
    with mock.patch.object(FeatureCache, "keep", count):
        assert set(work(cells, grid, Reporter()).values()) == {"done"}
    assert set(computed.values()) == {1} and not (grid / "features").exists()
    last = f"step-{len(cells[1].run.scenario) - 1}"
    run_experiment(replace(cells[1].config, out=str(tmp_path / "alone")), reporter=Reporter())
    assert not (tmp_path / "alone" / "features").exists()
    one, two = (folder / last / "model.safetensors" for folder in (tmp_path / "alone", cells[1].folder(grid)))
    assert one.read_bytes() == two.read_bytes()


def test_features_of_another_precision_are_not_shared(table: dict, tmp_path: Path):
    still = {"encoder_lr": 0.0, "keep_features": True, "precision": "float32"}
    (cell,) = plan(few(table, {"method": "lda", "train": still}))
    other = FeatureCache(tmp_path / "other", bf16=True)
    replace(cell.run, folder=tmp_path / "run").execute(reporter=Reporter(), features=other)
    assert not (tmp_path / "other").exists()
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["features"] == "float32"


def test_random_orders_are_a_run_each():
    configs = expand({"defaults": {"order": "random:0..4", "task": "4-2"}, "seeds": [0, 1]})
    assert [config.order for config in configs] == [f"random:{seed}" for seed in range(5)] * 2
    assert len({run_name(config) for config in configs}) == 10


def test_a_run_that_comes_twice_is_refused(table: dict):
    del table["axes"]
    with pytest.raises(TissError, match="comes twice"):
        plan(table | {"runs": [{"method": "ft"}, {"method": "ft"}]})


def test_equal_first_steps_are_shared_and_only_those(table: dict):
    cells = {(cell.config.method.name, cell.config.seed): cell for cell in plan(table)}
    base = {key: cell.base for key, cell in cells.items()}
    assert base["ft", 0] == base["mib", 0] is not None
    assert base["ft", 0] != base["ft", 1]
    assert len({base["tiss", 0], base["mib", 0], base["offline", 0]}) == 3  # L_ct takes part in its step 0


def test_offline_training_is_one_for_all_tasks_and_scored_for_each(table: dict, tmp_path: Path):
    cells = plan(few(table, {"method": "offline"}, axes={"task": ["2-2", "2-1"]}))
    assert cells[0].base == cells[1].base is not None
    grid = tmp_path / "grid"
    assert set(work(cells, grid, Reporter()).values()) == {"done"}
    assert len(list((grid / "bases").iterdir())) == 1
    assert main(["report", str(grid), "--collect", str(tmp_path / "kept")]) == 0
    kept = {path.name: json.loads(path.read_text()) for path in (tmp_path / "kept").glob("*.json")}
    two, one = (kept[f"{cell.name}.json"] for cell in cells)
    assert two["steps"][0]["iou"] == one["steps"][0]["iou"]
    assert [len(two["groups"]), len(one["groups"])] == [2, 3]
    assert two["train_seconds"] == one["train_seconds"] != [0.0]
    alone = replace(cells[0].config, out=str(tmp_path / "alone"))
    run_experiment(alone, reporter=Reporter())
    first = (tmp_path / "alone" / "step-0" / "model.safetensors").read_bytes()
    assert first == (cells[0].folder(grid) / "step-0" / "model.safetensors").read_bytes()


def test_a_grid_does_each_run_once_and_goes_on_past_a_failure(table: dict, tmp_path: Path):
    broken = {"method": "mib", "model": {"pretrained": str(tmp_path / "nothing.safetensors")}}
    cells = plan(few(table, broken, {"method": "ft"}, {"method": "mib"}))
    state = work(cells, tmp_path / "grid", Reporter())
    assert sorted(state.values()) == ["done", "done", "failed"]
    done = [cell for cell in cells if state[cell.name] == "done"]
    assert all(is_finished(cell.folder(tmp_path / "grid")) for cell in done)
    shared = {(cell.folder(tmp_path / "grid") / "step-0" / "model.safetensors").read_bytes() for cell in done}
    assert len(shared) == 1
    times = [(cell.folder(tmp_path / "grid") / "metrics.jsonl").stat().st_mtime_ns for cell in done]
    work(done, tmp_path / "grid", Reporter())
    assert times == [(cell.folder(tmp_path / "grid") / "metrics.jsonl").stat().st_mtime_ns for cell in done]


def test_commands_parse_back_to_the_same_run(table: dict):
    for config in expand(table):
        words = shlex.split(command_of(config))
        assert words[:2] == ["tiss", "run"]
        values = parse_flags("run", words[2:], run_flags(config.method.name))
        assert to_mapping(config_from(values, None)) == to_mapping(config)


def test_every_table_of_the_paper_has_a_grid():
    expected = {"voc", "ade", "ablation", "ade-base", "cityscapes", "swin"}
    expected |= {f"{task}{setup}" for task in ("19-1", "15-5", "15-1") for setup in "do"}
    assert set(tables()) == expected
    for name in tables():
        configs = expand(with_options(load_table(name), Options(root="x", seeds=(0,))))
        assert configs
        assert all(config.data.root == "x" for config in configs)


def test_the_command(tiny_folder: Path, tmp_path: Path, table: dict, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({**table, "seeds": [0], "axes": {"method": ["ft", "mib"]}}))
    assert main(["grid", str(file), "--out", str(tmp_path / "grid"), "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3  # a shared first step and two runs
    assert "--steps 1" in lines[0]
    assert main(["grid", str(file), "--out", str(tmp_path / "grid")]) == 0
    results = [json.loads(path.read_text()) for path in (tmp_path / "grid").glob("*/results.json")]
    assert sorted(r["method"] for r in results) == ["ft", "mib"]
    capsys.readouterr()
    damaged = sorted((tmp_path / "grid").glob("*/results.json"))[0]
    whole = damaged.read_bytes()
    for text in (whole[: len(whole) // 2], b'{"finished": true}', b"[]"):
        damaged.write_bytes(text)
        assert main(["grid", str(file), "--out", str(tmp_path / "grid")]) == 0
        lines = [line for line in capsys.readouterr().err.splitlines() if "results.json" in line]
        assert len(lines) == 1
        assert "is damaged" in lines[0]
        assert damaged.read_bytes() == whole
    damaged.write_bytes(b"{")  # the remedy that the commands name
    run = damaged.parent
    assert main(["run", "--config", str(run / "config.yaml"), "--out", str(run), "--resume"]) == 0
    assert damaged.read_bytes() == whole
    capsys.readouterr()
    assert main(["grid", "15-1"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert main(["grid", "nowhere.yaml"]) == 2
    assert capsys.readouterr().err == "tiss: tiss grid nowhere.yaml: no such file or folder\n"


SOLVED = [{"name": "analytic", "width": 64}, {"name": "analytic", "width": 32}, "ft"]


@pytest.mark.parametrize("methods", [["ft", "recall"], SOLVED], ids=["recall", "analytic"])
def test_methods_start_from_what_another_one_trained(table: dict, tmp_path: Path, methods: list):
    """Statistics come from a pass over the images, and each solves its own head, as in a run of its own."""
    table["defaults"]["train"]["step_lr"] = 1e-3
    cells = plan(few(table, *({"method": method} for method in methods)))
    assert {cell.base for cell in cells} == {cells[0].base} != {None}
    grid = tmp_path / "grid"
    assert set(work(cells, grid, Reporter()).values()) == {"done"}
    for index, cell in enumerate(cells):
        alone = tmp_path / str(index)
        run_experiment(replace(cell.config, out=str(alone)), reporter=Reporter())
        for path in alone.glob("step-*/m*.safetensors"):
            assert (cell.folder(grid) / path.relative_to(alone)).read_bytes() == path.read_bytes(), path


def test_a_first_step_that_one_worker_began_is_resumed_by_another(table: dict, tmp_path: Path):
    cells = plan(few(table, {"method": "ft"}, {"method": "mib"}))
    with mock.patch.object(Session, "learn", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        work([cells[0]], tmp_path, Reporter())
    with mock.patch.object(grid_module, "is_finished", lambda folder: "-ft-" in folder.name):
        assert work(cells, tmp_path, Reporter())[cells[1].name] == "done"


def test_a_step_that_is_solved_is_no_shared_first_step(table: dict):
    table["defaults"]["train"]["encoder_lr"] = 0
    bases = [cell.base for cell in plan(few(table, {"method": "analytic"}, {"method": "ft"}))]
    assert bases[0] is None and bases[1] is not None


def test_a_finished_run_of_the_same_name_with_other_settings_is_not_taken_for_this_one(
    table: dict, tmp_path: Path
):
    longer = few(table, {"method": "ft", "train": {"epochs": 2}})
    grid = tmp_path / "grid"
    ((one,), (two,)) = plan(few(table, {"method": "ft"})), plan(longer)
    assert one.name == two.name
    for cell in (one, two, one):  # the first is still found under its name
        work([cell], grid, Reporter())
    assert one.folder(grid).name == one.name
    assert two.folder(grid).name.startswith(f"{one.name}-")
    assert [read_config(cell.folder(grid)).train.epochs for cell in (one, two)] == [1, 2]
    # the same run, from another machine
    (tmp_path / "mounted").symlink_to(longer["defaults"]["data"]["root"])
    data = {**longer["defaults"]["data"], "root": str(tmp_path / "mounted")}
    (elsewhere,) = plan({**longer, "defaults": {**longer["defaults"], "data": data}})
    assert work([elsewhere], grid, Reporter()) == {two.name: "done"}
    assert len(list(grid.glob("*/results.json"))) == 2


def test_what_failed_is_tried_again_at_the_next_start(
    table: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cells, grid = plan(few(table, {"method": "ft"})), tmp_path / "grid"
    with monkeypatch.context() as broken:
        broken.setattr(Run, "execute", mock.Mock(side_effect=OSError("the disk is gone")))
        assert work(cells, grid, Reporter()) == {cells[0].name: "failed"}
    failure = grid / "claims" / f"{cells[0].unique}.failed.txt"
    assert "the disk is gone" in failure.read_text()
    assert work(cells, grid, Reporter()) == {cells[0].name: "done"}
    assert not failure.exists()


@pytest.mark.parametrize("text", ["", "newer: true\n", "train: [1]\n"])
def test_a_folder_that_cannot_be_read_stops_nothing_and_stays(table: dict, tmp_path: Path, text: str):
    (cell,) = plan(few(table, {"method": "ft"}))
    foreign = tmp_path / "grid" / cell.name / "config.yaml"
    foreign.parent.mkdir(parents=True)
    foreign.write_text(text)
    assert work([cell], tmp_path / "grid", Reporter()) == {cell.name: "done"}
    assert foreign.read_text() == text
    assert (tmp_path / "grid" / cell.unique / "results.json").exists()


def test_time_left_counts_what_all_workers_do(table: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cells = plan(few(table, {"method": "ft"}, {"method": "mib"}, seeds=[0, 1]))
    finished = {cell.name for cell in cells[:3]}
    monkeypatch.setattr(grid_module, "is_finished", lambda folder: folder.name in finished)
    # one was there before; one is this worker's, one another's: two in four minutes, so two minutes for the last
    text = grid_module._progress(cells, tmp_path, {cells[0].name: "done", cells[1].name: "done"}, 1, 240.0)
    assert text == "grid: 3 of 4 runs done, 0 failed, about 2 min left"


def test_runs_that_are_recorded_are_not_done_again(
    table: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    table = few(table, {"method": "ft"}, {"method": "offline"}, seeds=[0, 1])
    table["defaults"]["train"]["step_epochs"] = 1
    file = tmp_path / "grid.yaml"
    file.write_text(yaml.safe_dump({**table, "seeds": [0]}))
    assert main(["grid", str(file), "--out", str(tmp_path / "here")]) == 0
    assert main(["report", str(tmp_path / "here"), "--collect", str(tmp_path / "kept")]) == 0
    # another run for ft, the same for offline, which has no later step
    table["defaults"]["train"]["step_epochs"] = 2
    file.write_text(yaml.safe_dump(table))
    capsys.readouterr()
    words = ["grid", str(file), "--out", str(tmp_path / "there"), "--done", str(tmp_path / "kept"), "--list"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("1 of 4 runs")
    commands = printed.out.splitlines()  # nothing but commands: they may go to a scheduler
    runs = [line for line in commands if "--steps 1" not in line]  # the others train first steps
    assert sum("--method ft" in line for line in runs) == 2
    assert sum("--method offline" in line and "--seed 1" in line for line in runs) == 1
    assert len(runs) == 3
    assert main(["grid", str(file), "--done", str(tmp_path / "nothing"), "--list"]) == 2
    assert "no folder of records" in capsys.readouterr().err
