from __future__ import annotations

from pathlib import Path

import pytest

from tiss.engine import run_folder
from tiss.errors import TissError
from tiss.files.lock import Lease


def fail(folder: Path) -> None:
    with run_folder.owned(folder, True):
        (folder / "config.yaml").write_text("x")
        raise TissError("a mistake")


def test_a_mistake_at_the_start_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TissError, match="a mistake"):
        fail(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_mistake_later_leaves_what_was_learnt(tmp_path: Path) -> None:
    (tmp_path / "run" / "step-0").mkdir(parents=True)
    with pytest.raises(TissError, match="a mistake"):
        fail(tmp_path / "run")
    assert (tmp_path / "run" / "step-0").is_dir()


def test_who_comes_second_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs start at once: both see no folder, and the first makes it before the second can."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("of the first")
    monkeypatch.setattr(Path, "exists", lambda self: False)
    with Lease(folder / "lock"), pytest.raises(TissError, match="in use by process"):
        fail(folder)
    assert (folder / "config.yaml").read_text() == "of the first"
