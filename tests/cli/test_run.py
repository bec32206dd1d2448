"""`tiss run`, `eval`, `methods`, `encoders` in process: results, resumption, and mistakes of one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tiss.cli.main import main
from tiss.config import RunConfig, from_mapping
from tiss.methods.base import settings_from


@pytest.fixture(scope="module")
def finished(tiny_flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "mib"
    assert main(["run", *tiny_flags, "--method", "mib", "--out", str(out)]) == 0
    return out


def test_a_run_leaves_what_the_docs_promise(finished: Path):
    results = json.loads((finished / "results.json").read_text())
    assert results["finished"] is True
    assert [step["seen"] for step in results["steps"]] == [3, 5]
    assert results["classes"] == ["background", "disc", "square", "triangle", "ring"]
    assert set(results["steps"][1]["scores"]) >= {"all", "old", "new", "groups", "harmonic"}
    names = {path.name for path in finished.iterdir()}
    files = {"config.yaml", "environment.json", "metrics.jsonl", "results.json", "timing.json", "lock"}
    assert names == files | {"step-0", "step-1"}  # the checkpoint is gone
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert {"cross_entropy", "distillation"} == set(lines[-1]["losses"])


def test_the_written_configuration_is_the_run(finished: Path, capsys: pytest.CaptureFixture[str]):
    written = yaml.safe_load((finished / "config.yaml").read_text())
    config = from_mapping(RunConfig, written)
    assert settings_from(config.method).name == "mib"
    assert config.train.lr is not None
    assert main(["run", "--config", str(finished / "config.yaml"), "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == written


def test_eval_gets_the_same_pixels(finished: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["eval", str(finished)]) == 0
    assert "the same as when it was trained" in capsys.readouterr().out
    assert main(["eval", str(finished), "--step", "0", "--json"]) == 0
    assert main(["eval", str(finished), "--mode", "slide"]) == 0
    capsys.readouterr()
    assert main(["eval", str(finished), "--step", "5"]) == 2
    assert "no step 5" in capsys.readouterr().err


def test_resume_starts_where_nothing_is_and_repeats_no_step(tmp_path: Path, tiny_flags: list[str]):
    run = ["run", *tiny_flags, "--method", "ft", "--steps", "1", "--out", str(tmp_path / "run"), "--resume"]
    stamps = []
    for _ in range(2):
        assert main(run) == 0
        stamps.append((tmp_path / "run" / "step-0" / "model.safetensors").stat().st_mtime_ns)
    assert stamps[0] == stamps[1]


def test_a_folder_holds_one_run(finished: Path, tiny_flags: list[str], capsys: pytest.CaptureFixture[str]):
    again = ["run", *tiny_flags, "--method", "mib", "--out", str(finished)]
    assert main(again) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*again, "--resume"]) == 0
    capsys.readouterr()
    assert main([*again, "--seed", "1", "--resume"]) == 2
    assert "another run (different seed)" in capsys.readouterr().err


def test_a_first_step_can_be_taken_over(finished: Path, tiny_flags: list[str], tmp_path: Path):
    out = tmp_path / "lwf"
    assert main(["run", *tiny_flags, "--method", "lwf", "--base", str(finished), "--out", str(out)]) == 0
    same = [(folder / "step-0" / "model.safetensors").read_bytes() for folder in (finished, out)]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method", "mibb"], "did you mean 'mib'"),
        (["--data", "vocc"], "did you mean 'voc'"),
        (["--task", "disc,square/circle"], "circle"),
        (["--task", "disc,square/square,ring"], "square"),
        (["--task", "3-2"], "--task"),
        (["--model.encoder", "vit_smal_patch16_384"], "did you mean 'vit_small_patch16_384'"),
        (["--train.batch", "4", "--train.accumulate", "3"], "--train.batch"),
        (["--train.tracker", "tensorbord"], "did you mean 'tensorboard'"),
        (["--train.tracker", "mlflow"], "not installed"),
        (["--holdout", "1.5"], "--holdout"),
        (["--model.encoder", "resnet_micro", "--method", "tiss"], "transformers"),
        (["--data.root", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_mistakes_end_in_one_line_and_leave_nothing(
    flags: list[str], message: str, tiny_flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    assert main(["run", *tiny_flags, "--out", str(out), *flags]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not out.exists()


def test_a_label_out_of_range_names_its_file(
    tiny_folder: Path, tiny_flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    import shutil

    from PIL import Image

    broken = tmp_path / "broken"
    shutil.copytree(tiny_folder, broken)
    mask = sorted((broken / "masks" / "train").iterdir())[0]
    Image.new("L", Image.open(mask).size, 37).save(mask)
    flags = [str(broken) if word == str(tiny_folder) else word for word in tiny_flags]
    assert main(["run", *flags, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert mask.stem in error
    assert "37" in error


def test_a_checkpoint_of_another_architecture(finished: Path, tiny_flags: list[str], tmp_path: Path, capsys):
    weights = str(finished / "step-0" / "model.safetensors")
    flags = ["--model.encoder", "vit_demo_patch8", "--model.pretrained", weights]
    assert main(["run", *tiny_flags, "--out", str(tmp_path / "out"), *flags]) == 2
    assert "model.safetensors" in capsys.readouterr().err


def test_a_pickle_is_read_with_permission_only(
    tiny_flags: list[str], finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    import torch

    from tiss.models.model import SegmentationModel

    weights = tmp_path / "encoder.pth"
    torch.save(SegmentationModel.from_pretrained(finished / "step-0").encoder.state_dict(), weights)
    flags = ["--model.pretrained", str(weights), "--steps", "1", "--out", str(tmp_path / "out")]
    assert main(["run", *tiny_flags, *flags]) == 2
    assert "allow_pickle" in capsys.readouterr().err
    assert main(["run", *tiny_flags, *flags, "--allow-pickle"]) == 0


def test_lists(capsys: pytest.CaptureFixture[str]):
    assert main(["methods"]) == 0
    assert "tiss" in capsys.readouterr().out
    assert main(["encoders"]) == 0
    assert "vit_small_patch16_384" in capsys.readouterr().out
    assert main(["run", "--method", "plop", "--help"]) == 0
    assert "--method." in capsys.readouterr().out
    assert main(["rnu"]) == 2
    assert "did you mean 'run'" in capsys.readouterr().err


def test_a_tracker_writes_beside_the_run(tiny_flags: list[str], tmp_path: Path):
    pytest.importorskip("tensorboard")
    out = tmp_path / "tracked"
    flags = ["--method", "ft", "--steps", "1", "--train.tracker", "tensorboard", "--out", str(out)]
    assert main(["run", *tiny_flags, *flags]) == 0
    assert list(out.rglob("events.out.tfevents.*"))
