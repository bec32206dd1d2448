"""A run folder: who may write, what is kept, and the commit that a run notes."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tiss.config import EvalConfig, RunConfig, to_mapping
from tiss.engine.checkpoint import Journal
from tiss.engine.run_folder import RunFolder, StepFolder, commit, identity, variant_of
from tiss.errors import TissError
from tiss.files import Lock, write_tensors
from tiss.methods.base import settings_from

CONFIG = RunConfig(method=settings_from("mib"))


def world(is_main: bool = True) -> Any:
    accelerator = SimpleNamespace(log_with=[])
    return SimpleNamespace(is_main=is_main, accelerator=accelerator, wait=lambda: None)


def fail(folder: Path, config: RunConfig = CONFIG, resume: bool = False) -> None:
    with RunFolder(folder).opened(config, world(), resume):
        raise TissError("a mistake")


def test_a_mistake_at_the_start_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TissError, match="a mistake"):
        fail(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_mistake_later_leaves_what_was_trained(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with RunFolder(folder).opened(CONFIG, world(), False):
        (folder / "step-0").mkdir()
    with pytest.raises(TissError, match="a mistake"):
        fail(folder, resume=True)
    assert (folder / "step-0").is_dir()


def test_the_second_process_is_refused_and_removes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with RunFolder(folder).opened(CONFIG, world(), False):
        with pytest.raises(TissError, match="in use"):
            fail(folder, resume=True)
        with pytest.raises(TissError, match="in use"), Lock(folder / "lock"):
            pass
    assert (folder / "config.yaml").exists()


def test_only_the_very_run_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with RunFolder(folder).opened(CONFIG, world(), False):
        pass
    with pytest.raises(TissError, match="resume") as found:
        fail(folder)
    assert found.value.setting == "out"
    with pytest.raises(TissError, match="method"):
        fail(folder, RunConfig(method=settings_from("ft")), resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    with pytest.raises(TissError, match="not a run folder"):
        fail(tmp_path / "mine")


@pytest.mark.parametrize(("name", "value"), [("other", [[1]]), ("confusion", [1]), ("confusion", [[1.0]])])
def test_a_damaged_confusion_matrix_is_named(tmp_path: Path, name: str, value: list) -> None:
    write_tensors(tmp_path / "confusion.safetensors", {name: torch.tensor(value)})
    with pytest.raises(TissError, match=r"confusion\.safetensors: holds no confusion matrix"):
        StepFolder(tmp_path).confusion()


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_restart_drops_the_lines_of_a_step_that_was_stopped(tmp_path: Path) -> None:
    log = Journal(world(), tmp_path)
    log.restart(0)
    for step in (0, 0, 1, 1):
        log.log({"step": step, "losses": {}, "loss": 0.0})
    log.restart(2)
    assert steps(tmp_path) == [0, 0, 1, 1]
    log.restart(1)
    assert steps(tmp_path) == [0, 0]
    Journal(world(is_main=False), tmp_path).restart(0)
    assert steps(tmp_path) == [0, 0]
    log.rewind(len('{"step": 0}'))
    assert log.size() == len('{"step": 0}')


def test_restart_drops_a_line_that_was_cut_off(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"st')
    Journal(world(), tmp_path).restart(1)
    assert steps(tmp_path) == [0]


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
    # a package in an environment within another repository has none
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


def test_lists_and_trial_tests_belong_to_what_a_run_is() -> None:
    listed = replace(CONFIG, lists="/data/mib/100-10")
    changed = (CONFIG, listed, replace(listed, lists="100-10b"), replace(CONFIG, eval=EvalConfig(images=200)))
    assert len({identity(to_mapping(config)) for config in changed}) == 4
    assert identity(to_mapping(listed)) == identity(to_mapping(replace(listed, lists="elsewhere/100-10")))
    assert variant_of(listed) == {"order": None, "lists": "100-10", "eval_images": None}
