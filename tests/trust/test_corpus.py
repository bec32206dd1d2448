"""Damaged files that once ended somewhere new, and a short look for more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.fuzz import TARGETS, attempt, run, saved


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_corpus_ends_in_a_result_or_in_one_line(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    inputs = [*target.seeds(), *saved(target)]
    assert inputs
    ends = [attempt(target, data, tmp_path) for data in inputs]
    assert not [where for kind, where in ends if kind == "finding"]
    assert "read" in [kind for kind, _ in ends], "not even a valid file is read"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_few_seconds_of_fuzzing(name: str) -> None:
    result = run(TARGETS[name], seconds=3, seed=1)
    assert result["tried"] > 20
    assert not result["findings"]


def test_a_reader_that_fails_is_found() -> None:
    from tools.fuzz_targets import Target

    def read(data: bytes, folder: Path) -> object:
        return 1 // (b"x" not in data)

    result = run(Target("test", "bytes", lambda: [b"abc", b"xyz"], read), seconds=0.2)
    assert "ZeroDivisionError" in result["findings"][0][0]
    assert bytes.fromhex(result["findings"][0][1]).count(b"x")
