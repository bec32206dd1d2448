"""The run that nothing disturbs, which all others are compared with."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import write_folder
from tests.stress.runs import Kill, arguments, attempt, contents


@dataclass(frozen=True)
class Trial:
    """A place where runs meet trouble; `calls` counts how often the undisturbed run passed each point."""

    work: Path
    data: Path
    wanted: dict[str, Any]
    calls: dict[str, int]

    def run(
        self, out: Path, kill: Kill | None = None, workers: int = 0, file_size: int = 0
    ) -> tuple[int, str]:
        return attempt(arguments(self.data, out, workers), self.work, kill, file_size)

    def finish(self, out: Path) -> None:
        """Resumes without trouble; the result must be that of the undisturbed run, byte for byte."""
        code, text = self.run(out)
        assert code == 0, text[-800:]
        found = contents(out)
        different = [
            name for name in found.keys() | self.wanted.keys() if found.get(name) != self.wanted.get(name)
        ]
        assert not different
        shutil.rmtree(out)


@pytest.fixture(scope="package")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    work = tmp_path_factory.mktemp("stress")
    data = write_folder(work / "data", 24, 12)
    code, text = attempt(arguments(data, work / "reference"), work)
    assert code == 0, text
    return Trial(work, data, contents(work / "reference"), json.loads((work / "calls.json").read_text()))
