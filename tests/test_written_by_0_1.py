"""Folders that version 0.1 wrote, in tests/fixtures/v0_1: every command of this version reads them.

`run` is two steps of MiB on `shapes`, `model` a model of three classes that learned a fourth one with RECALL.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tiss
from tiss.cli.main import main

FOLDER = Path(__file__).parent / "fixtures" / "v0_1"
RUN = FOLDER / "run"


def stored() -> dict:
    return json.loads((RUN / "results.json").read_text())


def test_a_run_opens_with_its_models() -> None:
    run = tiss.load_run(RUN)
    assert run.steps_done == 2 and run.config.method.name == "mib"
    models = [run.model(step) for step in (0, 1)]
    assert [len(model.classes) for model in models] == [7, 9]
    assert models[1].groups == stored()["groups"] == [[1, 2, 3, 4, 5, 6], [7, 8]]


@pytest.mark.parametrize("step", [0, 1])
def test_its_models_score_as_they_did(step: int, capsys: pytest.CaptureFixture[str]) -> None:
    main(["eval", str(RUN), "--step", str(step), "--json", "--device", "cpu"])
    now, then = json.loads(capsys.readouterr().out.rpartition("}")[0] + "}"), stored()["steps"][step]
    assert now["iou"] == pytest.approx(then["iou"], abs=0.05)
    assert now["pixel_accuracy"] == pytest.approx(then["pixel_accuracy"], abs=0.05)


def test_a_report_has_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(RUN), "--html", str(tmp_path / "report.html")]) == 0
    score = stored()["steps"][-1]["scores"]["all"]["with_background"]
    assert f"{score:.1f}" in capsys.readouterr().out
    assert (tmp_path / "report.html").stat().st_size > 1000


def test_a_run_resumes_after_its_first_step(tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(RUN, out)
    shutil.rmtree(out / "step-1")
    flags = ["--config", str(out / "config.yaml"), "--out", str(out), "--resume"]
    assert main(["run", *flags]) == 0
    assert (out / "step-0/model.safetensors").read_bytes() == (RUN / "step-0/model.safetensors").read_bytes()
    assert tiss.load_run(out).steps_done == 2


@pytest.mark.parametrize(("name", "method"), [("model", "recall"), ("run", "mib")])
def test_a_model_is_extended(name: str, method: str, tmp_path: Path, tiny_folder: Path) -> None:
    start = tiss.from_pretrained(FOLDER / name if name == "model" else RUN / "step-1")
    data = tmp_path / "data"
    shutil.copytree(tiny_folder, data)
    (data / "classes.txt").write_text("background\nnew\n")
    for mask in data.glob("masks/*/*.png"):
        Image.fromarray((np.asarray(Image.open(mask)) == 2).astype(np.uint8)).save(mask)
    out = tmp_path / "out"
    options = ["--epochs", "1", "--size", "16", "--device", "cpu", "--out", str(out)]
    assert main(["extend", str(FOLDER / name), "--data", str(data), *options]) == 0
    model = tiss.from_pretrained(out)
    assert model.classes == [*start.classes, "new"]
    assert model.record["method"] == method
    assert len(model.record["history"]) == len(start.record.get("history", [])) + 1
    assert (out / "method.safetensors").is_file() == (method == "recall")
    assert ("- step 0: 12 images, tested on 4 held-out" in (out / "README.md").read_text()) == (
        name == "model"
    )
