"""The walk of `tiss run`, as docs/design.md has it: nothing is done twice."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tiss.cli.main import main
from tiss.data.folder import PairedDataset
from tiss.engine import recipes
from tiss.methods.base import Method


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
