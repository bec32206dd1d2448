"""`tiss demo`, shortened: the table, the page, and going on after a stop."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tiss.cli import demo
from tiss.cli.main import main
from tiss.data.shapes import Shapes
from tiss.engine import recipes


def test_the_demo_prints_a_table_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(demo, "METHODS", ("ft", "offline"))
    monkeypatch.setattr(
        Shapes.__init__, "__defaults__", (None, 0, 64, 60, 20)
    )  # pictures for seconds, not minutes
    for key, value in {"epochs": 1, "step_epochs": 1}.items():
        monkeypatch.setitem(recipes.DEMO, key, value)
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "with background" in printed.out
    assert "without background" in printed.out
    assert "recipe: optimizer adamw" in printed.out
    page = (out / "report.html").read_text()
    assert "FT" in page
    assert not re.search(r"(?:src|href)=.https?:", page)  # one file: nothing is fetched
    assert main(["demo", "--out", str(out)]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["demo", "--out", str(out), "--resume"]) == 0
