"""`tiss report` and `tiss figure` in process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reporting.fakes import folder, results
from tiss.cli.main import main


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for method in ("ft", "tiss"):
        folder(tmp_path, results(method))
    return tmp_path


def test_tables_and_page_beside_the_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(runs)]) == 0
    text = capsys.readouterr().out
    assert "after the last step" in text
    assert "step by step" in text
    assert "by class" not in text
    assert (runs / "report.html").is_file()


@pytest.mark.parametrize(
    ("form", "sign"), [("markdown", "|---|"), ("latex", r"\begin{tabular}"), ("csv", "method,")]
)
def test_table_formats(runs: Path, capsys: pytest.CaptureFixture[str], form: str, sign: str) -> None:
    assert main(["report", str(runs), "--table", form, "--classes"]) == 0
    assert sign in capsys.readouterr().out
    assert not (runs / "report.html").exists()


def test_the_paper_s_table_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--paper", "cityscapes"]) == 0
    assert "PLOPLong" in capsys.readouterr().out


def test_figures(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "drawn"
    assert main(["figure", "steps,forgetting", str(runs), "--out", str(out)]) == 0
    assert sorted(path.suffix for path in out.iterdir()) == [".png", ".png", ".svg", ".svg"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report"], "takes run folders"),
        (["report", "nowhere"], "is no run folder"),
        (["report", "--paper", "vox"], "did you mean 'voc'"),
        (["figure", "steps"], "takes a kind and run folders"),
        (["figure", "stps", "RUNS"], "did you mean 'steps'"),
        (["figure", "predictions", "RUNS"], "needs their step folders"),
    ],
)
def test_mistakes_are_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    words = [str(runs) if word == "RUNS" else word for word in words]
    assert main([*words, *(["--out", str(runs / "x")] if words[0] == "figure" else [])]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1
    assert message in errors[0]


def test_finished_runs_are_collected(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder(runs, results("mib", finished=False))
    assert main(["report", str(runs), "--collect", str(tmp_path / "kept")]) == 0
    text = capsys.readouterr().out
    assert "left out: " in text
    assert "2 runs in " in text
    assert main(["report", str(tmp_path / "kept"), "--html", "no"]) == 0
    assert "TISS" in capsys.readouterr().out
