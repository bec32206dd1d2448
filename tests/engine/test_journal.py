from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tiss.engine.journal import RunJournal


def journal(folder: Path, is_main: bool = True) -> RunJournal:
    world: Any = SimpleNamespace(is_main=is_main, accelerator=SimpleNamespace(log_with=[]))
    return RunJournal(folder, world)


def steps(folder: Path) -> list[int]:
    return [
        cast(int, json.loads(line)["step"]) for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def test_restart_drops_the_lines_of_a_step_that_was_stopped(tmp_path: Path) -> None:
    log = journal(tmp_path)
    log.restart(0)
    for step in (0, 0, 1, 1):
        log.log({"step": step, "losses": {}, "loss": 0.0})
    log.restart(2)
    assert steps(tmp_path) == [0, 0, 1, 1]
    log.restart(1)
    assert steps(tmp_path) == [0, 0]


def test_restart_drops_a_line_that_was_cut_off(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"st')
    journal(tmp_path).restart(1)
    assert steps(tmp_path) == [0]


def test_only_the_first_process_cuts(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
    journal(tmp_path, is_main=False).restart(0)
    assert steps(tmp_path) == [0]
