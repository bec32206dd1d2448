"""`tiss report` and `tiss figure` in process."""

from pathlib import Path

import pytest
import torch

from tests.report.fakes import folder, results
from tests.user.story import Capture
from tiss.cli.main import main
from tiss.files import write_tensors


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for method in ("ft", "tiss"):
        folder(tmp_path, results(method))
    return tmp_path


def test_tables_and_page_beside_the_runs(runs: Path, capsys: Capture):
    assert main(["report", str(runs)]) == 0
    text = capsys.readouterr().out
    assert "after the last step" in text
    assert "step by step" in text
    assert "by class" not in text
    assert (runs / "report.html").is_file()


@pytest.mark.parametrize(
    ("form", "sign"), [("markdown", "|---|"), ("latex", r"\begin{tabular}"), ("csv", "table,data,task,")]
)
def test_table_formats(runs: Path, capsys: Capture, form: str, sign: str):
    assert main(["report", str(runs), "--table", form, "--classes"]) == 0
    assert sign in capsys.readouterr().out
    assert not (runs / "report.html").exists()


def test_the_paper_s_table_alone(capsys: Capture):
    assert main(["report", "--paper", "cityscapes"]) == 0
    assert "PLOPLong" in capsys.readouterr().out


def test_a_collection_of_records_becomes_one_page(runs: Path, tmp_path: Path):
    kept = tmp_path / "kept"
    assert main(["report", str(runs), "--collect", str(kept / "shapes")]) == 0
    (kept / "shapes" / "about.json").write_text("{}")
    assert main(["report", str(kept)]) == 0
    assert "shapes 4-2 overlapped" in (kept / "report.html").read_text()


def test_the_old_name_of_a_flag_works(runs: Path, capsys: Capture):
    assert main(["report", str(runs), "--pictures", "0"]) == 0
    assert "gallery" in capsys.readouterr().err


def test_figures(runs: Path, tmp_path: Path, capsys: Capture):
    out = tmp_path / "drawn"
    assert main(["figure", "steps,forgetting", str(runs), "--out", str(out)]) == 0
    assert sorted(path.suffix for path in out.iterdir()) == [".png", ".png", ".svg", ".svg"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report"], "RUN missing"),
        (["report", "nowhere"], "is no run folder"),
        (["report", "--paper", "vox"], "'voc'"),
        (["figure", "steps"], "RUN missing"),
        (["figure", "stps", "RUNS"], "'steps'"),
        (["figure", "predictions", "RUNS"], "step folders"),
    ],
)
def test_mistakes_are_one_line(runs: Path, capsys: Capture, words: list[str], message: str):
    words = [str(runs) if word == "RUNS" else word for word in words]
    assert main([*words, *(["--out", str(runs / "x")] if words[0] == "figure" else [])]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1
    assert message in errors[0]


def test_finished_runs_are_collected(runs: Path, tmp_path: Path, capsys: Capture):
    folder(runs, results("mib", finished=False))
    assert main(["report", str(runs), "--collect", str(tmp_path / "kept")]) == 0
    text = capsys.readouterr().out
    assert "left out: " in text
    assert "2 runs in " in text
    assert main(["report", str(tmp_path / "kept"), "--html", "no"]) == 0
    assert "TISS" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["", '{"format": 1', "[]", '{"format": 1, "steps": {}}', '{"other": "tool"}']
)
@pytest.mark.parametrize("command", [["report"], ["figure", "steps"]])
def test_damaged_results_end_in_one_line(runs: Path, capsys: Capture, command: list[str], text: str):
    path = sorted(runs.glob("*/results.json"))[0]
    path.write_text(text)
    assert main([*command, str(runs)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert str(path) in line
    assert "--resume" in line


def test_a_foreign_configuration_ends_in_one_line(runs: Path, capsys: Capture):
    path = sorted(runs.glob("*/config.yaml"))[0]
    path.write_text("- a\n- list\n")
    assert main(["report", str(runs)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"{path}: no configuration of a run" in line


def test_a_foreign_confusion_matrix_ends_in_one_line(runs: Path, tmp_path: Path, capsys: Capture):
    run = sorted(runs.glob("tiss-*"))[0]
    (run / "step-2").mkdir()
    for tensors, message in (
        ({"other": torch.ones(2)}, "holds no confusion matrix"),
        ({"confusion": torch.ones(2, 2, dtype=torch.int64)}, "disagree on the classes"),
    ):
        write_tensors(run / "step-2" / "confusion.safetensors", tensors)
        assert main(["figure", "confusion", str(run), "--out", str(tmp_path / "drawn")]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert message in line
