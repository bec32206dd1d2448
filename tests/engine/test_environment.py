"""The commit that a run notes: ours only, and git is left as it was."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tiss.engine.environment import commit


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *names, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    try:
        git(tmp_path, "init", "-q")
    except OSError:
        pytest.skip("needs git")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path / "package" / "module.py"


def test_the_commit_and_whether_there_are_changes(source: Path) -> None:
    head = git(source.parent, "rev-parse", "HEAD")
    assert commit(source) == head
    source.write_text("x = 2\n")
    assert commit(source) == head + "+"


def test_a_package_in_an_environment_within_another_repository_has_none(source: Path) -> None:
    installed = source.parents[1] / ".venv" / "module.py"
    installed.parent.mkdir()
    installed.write_text("x = 1\n")
    assert commit(installed) is None
    assert commit(source.parents[1] / "gone" / "module.py") is None


def test_the_index_is_not_written(source: Path) -> None:
    """`git status` likes to refresh it, under a lock that a killed run would leave behind."""
    index = source.parents[1] / ".git" / "index"
    before = index.read_bytes()
    os.utime(source, (1, 1))  # unchanged, but git has to look
    commit(source)
    assert index.read_bytes() == before
    git(source.parent, "status", "--porcelain")
    assert index.read_bytes() != before
