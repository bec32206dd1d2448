"""A run's record holds all that a page needs, and nothing of the machine that only its owner knows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.fakes import folder, results
from tiss.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from tiss.data.benchmarks import VOC
from tiss.engine.recipes import resolve
from tiss.engine.run_folder import dump_config
from tiss.files import read_json, write_json
from tiss.methods.base import settings_from
from tiss.report.records import collect, command_of_record, is_record, portable, record_of
from tiss.report.runs import experiments, find_runs, load_results


def full_folder(root: Path, method: str = "mib", **train: Any) -> Path:
    """A run folder as a grid leaves it, without models: its first step came from a shared one."""
    run = folder(root, results(method, 1, data="voc"))
    base = root / "bases" / "shared-step"
    base.mkdir(parents=True, exist_ok=True)
    config = RunConfig(
        data=DataConfig("voc", root=str(root / "VOCdevkit"), crop=448),
        task="4-2",
        method=settings_from(method),
        model=ModelConfig("vit_small_patch16_384", pretrained=str(root / "vit.safetensors")),
        train=TrainConfig(recipe="tuned", **train),
        seed=1,
        base=str(base),
        out=str(run),
    )
    (run / "config.yaml").write_text(dump_config(resolve(config, VOC)))  # type: ignore[arg-type]
    environment = {"tiss": "0.1.0", "command": ["tiss", "grid", str(root)], "device": "NVIDIA H200"}
    environment["data_left_out"] = {"train": [str(root), "b"], "test": []}
    write_json(run / "environment.json", environment)
    write_json(base / "timing.json", {"step-0": {"train_seconds": 61.5, "skipped": {}}})
    timing = {f"step-{step}": {"train_seconds": 10.0 * step or None, "skipped": {}} for step in range(3)}
    write_json(run / "timing.json", timing)
    speeds = [(1, 90.0), (1, 400.0), (1, 410.0), (2, 500.0)]
    lines = [json.dumps({"step": step, "images_per_second": speed}) for step, speed in speeds]
    (run / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 2, "ima')
    (base / "metrics.jsonl").write_text('{"step": 0, "images_per_second": 700.0}\n')
    return run


def test_a_record_has_scores_settings_machine_times_and_command(tmp_path: Path):
    record = record_of(full_folder(tmp_path))
    assert record["train_seconds"] == [61.5, 10.0, 20.0]
    assert record["images_per_second"] == [700.0, 400.0, 500.0]
    assert record["environment"] == {"tiss": "0.1.0", "device": "NVIDIA H200", "data_left_out": {"train": 2}}
    assert record["shared_base"] == "shared-step"
    assert record["config"]["train"]["batch"] == 12
    assert record["command"] == (
        "tiss run --method mib --data voc --data.root VOCdevkit --data.crop 448 --task 4-2 "
        "--model.pretrained vit.safetensors --seed 1"
    )
    assert command_of_record(record) == record["command"]
    figures = [value for step in record["steps"] for value in step["iou"].values()]
    assert all(round(value, 4) == value for value in figures)
    command = record_of(full_folder(tmp_path, epochs=6, step_lr=0.0003))["command"]
    assert command.endswith("--train.epochs 6 --train.step_lr 0.0003 --seed 1")


def test_a_base_chosen_by_hand_stays_in_the_settings(tmp_path: Path):
    run = full_folder(tmp_path)
    text = (run / "config.yaml").read_text().replace("/bases/", "/elsewhere/")
    (run / "config.yaml").write_text(text)
    record = record_of(run)
    assert record["config"]["base"] == "shared-step" and record["shared_base"] is None
    assert "--base shared-step" in record["command"]


def test_records_report_as_their_runs_do(tmp_path: Path):
    runs = [full_folder(tmp_path, method) for method in ("mib", "ft")]
    for path in collect(runs, tmp_path / "kept" / "voc")[0]:
        text = path.read_text()
        assert len(text) < 40_000 and tmp_path.name not in text  # no folder of this machine
    write_json(tmp_path / "kept" / "bench.json", {"rows": []})
    found = find_runs([tmp_path / "kept"])
    assert [path.suffix for path in found] == [".json", ".json"]
    (kept,), (first,) = experiments(load_results(found)), experiments(load_results(runs))
    assert [[series.label for series in one.series] for one in (kept, first)] == [["FT", "MiB"]] * 2
    for one, other in zip(kept.series, first.series, strict=True):
        assert one.first.settings["train.batch"] == other.first.settings["train.batch"]
        here, there = (series.mean("all") for series in (one, other))
        assert here.mean == pytest.approx(there.mean, abs=1e-4)


def test_another_run_of_the_same_name_is_kept_beside_the_first(tmp_path: Path):
    run, out = full_folder(tmp_path), tmp_path / "kept"
    collect([run], out)
    collect([run], out)
    assert len(list(out.iterdir())) == 1
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("compile: auto", "compile: 'off'"))
    collect([run], out)  # the same on another machine: no second seed
    assert len(list(out.iterdir())) == 1
    (run / "config.yaml").write_text(config.replace("batch: 12", "batch: 24"))
    collect([run], out)
    assert sorted(path.stem.removeprefix(run.name) for path in out.iterdir()) == ["", "-2"]
    batches = {read_json(path)["config"]["train"]["batch"] for path in out.iterdir()}
    assert batches == {12, 24}


def test_other_json_is_no_record_and_results_without_settings_have_no_command(tmp_path: Path):
    for text in ('{"format": 1}', "no JSON"):
        (tmp_path / "a.json").write_text(text)
        assert not is_record(tmp_path / "a.json")
    assert command_of_record(results()) is None


def test_a_hub_s_name_is_no_path(tmp_path: Path):
    config = RunConfig(
        model=ModelConfig(pretrained="timm/vit_small"), data=DataConfig(root="./there/VOCdevkit")
    )
    kept = portable(replace(config, lists="~/lists"))
    assert (kept.model.pretrained, kept.data.root, kept.lists) == ("timm/vit_small", "VOCdevkit", "lists")


def test_an_option_added_later_makes_no_other_series(tmp_path: Path):
    runs = [full_folder(tmp_path), full_folder(tmp_path)]
    kept, _ = collect(runs, tmp_path / "kept")
    older = read_json(kept[0])
    older["seed"] = older["config"]["seed"] = 2
    del older["config"]["train"]["clip"], older["config"]["method"]["divide"]
    older["config"]["train"] |= {"accumulate": 1}
    newer = read_json(kept[-1])
    newer["config"]["train"]["clip"] = None
    write_json(tmp_path / "older.json", older)
    write_json(tmp_path / "newer.json", newer)
    found = load_results([tmp_path / "older.json", tmp_path / "newer.json"])
    assert len(experiments(found)[0].series) == 1
