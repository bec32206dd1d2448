"""`tiss report` and `tiss figure` in process."""

from pathlib import Path

import pytest
import torch

from tests.report.fakes import folder, results
from tests.user.story import Capture, Refused, Said, tiss
from tiss.files import write_tensors


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for method in ("ft", "tiss"):
        folder(tmp_path, results(method))
    return tmp_path


def test_tables_and_page_beside_the_runs(runs: Path, said: Said):
    text = said("report", runs)
    assert "after the last step" in text and "step by step" in text and "by class" not in text
    assert (runs / "report.html").is_file()


FORMS = {"markdown": "|---|", "latex": r"\begin{tabular}", "csv": "table,data,task,"}


@pytest.mark.parametrize("form", FORMS)
def test_table_formats(runs: Path, said: Said, form: str):
    assert FORMS[form] in said("report", runs, "--table", form, "--classes")
    assert not (runs / "report.html").exists()


def test_the_paper_s_table_alone(said: Said):
    assert "PLOPLong" in said("report", "--paper", "cityscapes")


def test_finished_runs_are_collected_and_a_collection_becomes_one_page(runs: Path, said: Said):
    folder(runs, results("mib", finished=False))
    kept = runs / "kept"
    text = said("report", runs, "--collect", kept / "shapes")
    assert "left out: " in text and "2 runs in " in text
    assert "TISS" in said("report", kept, "--html", "no")
    (kept / "shapes" / "about.json").write_text("{}")
    said("report", kept)
    assert "shapes 4-2 overlapped" in (kept / "report.html").read_text()


def test_tables_with_another_average_say_so_and_write_no_page(runs: Path, said: Said, refused: Refused):
    text = said("report", runs, "--nonzero")
    assert text.count("classes of IoU 0 left out of means") == text.count("protocol paper") > 0
    assert not (runs / "report.html").exists()
    assert "--nonzero" in refused("report", runs, "--nonzero", "--html", runs / "x.html")


def test_the_old_name_of_a_flag_works(runs: Path, capsys: Capture):
    tiss("report", runs, "--pictures", 0)
    assert "gallery" in capsys.readouterr().err


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
def test_mistakes_are_one_line(runs: Path, refused: Refused, words: list[str], message: str):
    words = [str(runs) if word == "RUNS" else word for word in words]
    assert message in refused(*words, *(["--out", runs / "x"] if words[0] == "figure" else []))


DAMAGED = ["", '{"format": 1', '{"format": 2}', "[]", '{"format": 1, "steps": {}}', '{"other": "tool"}']


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_results_end_in_one_line(runs: Path, refused: Refused, text: str):
    path = sorted(runs.glob("*/results.json"))[0]
    path.write_text(text)
    for command in (["report"], ["figure", "steps"]):
        line = refused(*command, runs)
        assert str(path) in line and "--resume" in line


def test_a_foreign_configuration_ends_in_one_line(runs: Path, refused: Refused):
    path = sorted(runs.glob("*/config.yaml"))[0]
    path.write_text("- a\n- list\n")
    assert f"{path}: no configuration of a run" in refused("report", runs)


def test_a_foreign_confusion_matrix_ends_in_one_line(runs: Path, refused: Refused):
    run = sorted(runs.glob("tiss-*"))[0]
    (run / "step-2").mkdir()
    for tensors, message in (
        ({"other": torch.ones(2)}, "holds no confusion matrix"),
        ({"confusion": torch.ones(2, 2, dtype=torch.int64)}, "disagree on the classes"),
    ):
        write_tensors(run / "step-2" / "confusion.safetensors", tensors)
        assert message in refused("figure", "confusion", run, "--out", runs / "drawn")
