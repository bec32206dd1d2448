"""`tiss run`, `eval`, `methods`, `encoders` in process: results, resumption, and mistakes of one line."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from tests.user.story import Patch, Refused, Said, tiss
from tiss.cli import grid
from tiss.cli.main import main
from tiss.config import RunConfig, from_mapping
from tiss.data.folder import PairedDataset
from tiss.data.shapes import Shapes
from tiss.engine import recipes
from tiss.engine.session import Session
from tiss.methods.base import Method, settings_from
from tiss.models import SegmentationModel


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


def test_the_written_configuration_is_the_run(finished: Path, said: Said):
    written = yaml.safe_load((finished / "config.yaml").read_text())
    config = from_mapping(RunConfig, written)
    assert settings_from(config.method).name == "mib"
    assert config.train.lr is not None
    assert yaml.safe_load(said("run", "--config", finished / "config.yaml", "--print_config")) == written


def test_a_background_that_falls_is_a_warning_at_once(
    tmp_path: Path, tiny_flags: list[str], monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
):
    def confusion(session: Session, split: object) -> torch.Tensor:
        """Perfect at first, then half of the background is lost."""
        matrix = 10 * torch.eye(len(session.model.classes), dtype=torch.int64)
        matrix[0, -1] = 10 * (len(session.model.groups) > 1)
        return matrix

    monkeypatch.setattr(Session, "confusion", confusion)
    tiss("run", *tiny_flags, "--method", "ft", "--steps", 1, "--out", tmp_path / "run")
    assert "warning" not in capsys.readouterr().err
    tiss("run", *tiny_flags, "--method", "ft", "--out", tmp_path / "run", "--resume")
    assert "warning: the background's IoU fell in this step: 100.0 → 50.0" in capsys.readouterr().err


def test_eval_gets_the_same_pixels(finished: Path, said: Said, refused: Refused):
    assert "the same as when it was trained" in said("eval", finished)
    tiss("eval", finished, "--step", 0, "--json")
    tiss("eval", finished, "--mode", "slide")
    assert "no step 5" in refused("eval", finished, "--step", 5)


def test_a_folder_holds_one_run(finished: Path, tiny_flags: list[str], refused: Refused):
    again = ["run", *tiny_flags, "--method", "mib", "--out", finished]
    assert "resume" in refused(*again)
    tiss(*again, "--resume")
    assert "another run (different seed)" in refused(*again, "--seed", 1, "--resume")


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
        *((["--steps", value], f"--steps {value}: ") for value in ("0", "-1")),
        *((["--train.epochs", value], f"--train.epochs {value}: ") for value in ("0", "-1")),
        *(([f"--train.{one}", "0"], f"--train.{one} 0: ") for one in ("batch", "step_epochs", "accumulate")),
    ],
)
def test_mistakes_end_in_one_line_and_leave_nothing(
    flags: list[str], message: str, tiny_flags: list[str], tmp_path: Path, refused: Refused
):
    out = tmp_path / "out"
    assert message in refused("run", *tiny_flags, "--out", out, *flags)
    assert not out.exists()


def test_a_label_out_of_range_names_its_file(
    tiny_folder: Path, tiny_flags: list[str], tmp_path: Path, refused: Refused
):
    broken = tmp_path / "broken"
    shutil.copytree(tiny_folder, broken)
    mask = sorted((broken / "masks" / "train").iterdir())[0]
    Image.new("L", Image.open(mask).size, 37).save(mask)
    flags = [broken if word == str(tiny_folder) else word for word in tiny_flags]
    error = refused("run", *flags, "--out", tmp_path / "out", last=True)
    assert mask.stem in error and "37" in error


def test_weights_of_another_architecture_or_without_trust(
    finished: Path, tiny_flags: list[str], tmp_path: Path, refused: Refused
):
    command = ["run", *tiny_flags, "--out", tmp_path / "out", "--steps", 1, "--model.pretrained"]
    weights, pickled = finished / "step-0" / "model.safetensors", tmp_path / "encoder.pth"
    line = refused(*command, weights, "--model.encoder", "vit_demo_patch8", last=True)
    assert "model.safetensors" in line
    torch.save(SegmentationModel.from_pretrained(finished / "step-0").encoder.state_dict(), pickled)
    assert "allow_pickle" in refused(*command, pickled, last=True)
    tiss(*command, pickled, "--allow-pickle")


def test_lists_and_help(said: Said, refused: Refused):
    assert "tiss" in said("methods") and "vit_small_patch16_384" in said("encoders")
    assert "--method." in said("run", "--method", "plop", "--help")
    assert "did you mean 'run'" in refused("rnu")


def test_a_tracker_writes_beside_the_run(tiny_flags: list[str], tmp_path: Path):
    pytest.importorskip("tensorboard")
    out = tmp_path / "tracked"
    flags = ["--method", "ft", "--steps", "1", "--train.tracker", "tensorboard", "--out", str(out)]
    assert main(["run", *tiny_flags, *flags]) == 0
    assert list(out.rglob("events.out.tfevents.*"))


def test_the_demo_prints_a_table_and_writes_a_page(
    tmp_path: Path, monkeypatch: Patch, said: Said, refused: Refused
):
    monkeypatch.setattr(grid, "DEMO_METHODS", ("ft", "offline"))
    monkeypatch.setattr(Shapes.__init__, "__defaults__", (None, 0, 64, 60, 20))  # seconds, not minutes
    for key in ("epochs", "step_epochs"):
        monkeypatch.setitem(recipes.DEMO, key, 1)
    out = tmp_path / "demo"
    printed = said("demo", "--out", out)
    for part in ("with background", "without background", "recipe: optimizer adamw"):
        assert part in printed
    page = (out / "report.html").read_text()
    assert "FT" in page
    assert not re.search(r"(?:src|href)=.https?:", page)  # one file: nothing is fetched
    assert "--resume" in refused("demo", "--out", out)
    tiss("demo", "--out", out, "--resume")


def test_settings_are_resolved_once_data_opened_once_and_each_step_begun_once(
    tiny_flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def counted(*values: Any, **named: Any) -> Any:
            calls[name] += 1
            return plain(*values, **named)

        monkeypatch.setattr(owner, name, counted)

    count(recipes, "recipe_values")
    count(PairedDataset, "__init__")
    count(Method, "begin")
    run = ["run", *tiny_flags, "--method", "mib", "--out", str(tmp_path / "run")]
    assert main([*run, "--steps", "1"]) == 0
    assert calls == {"recipe_values": 1, "__init__": 1, "begin": 1}
    assert main([*run, "--resume"]) == 0
    assert calls == {"recipe_values": 2, "__init__": 2, "begin": 2}
