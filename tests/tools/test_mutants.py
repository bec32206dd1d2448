"""The files that the tool changes, and the tests that it runs, are there."""

from pathlib import Path

import pytest
from tools.mutants import AREAS, find

ROOT = Path(__file__).parents[2]


def test_every_area_has_its_files() -> None:
    for sources, tests in AREAS.values():
        assert find(ROOT / "src/tiss", sources) and find(ROOT / "tests", tests)
    with pytest.raises(SystemExit, match=r"gone\.py"):
        find(ROOT / "src/tiss", "config.py gone.py")
