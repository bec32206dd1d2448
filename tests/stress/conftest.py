"""The run that nothing disturbs, which all others are compared with."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import write_folder
from tests.stress.runs import COMMANDS, MODEL, Kill, attempt, contents


@dataclass
class Trial:
    """A place where a command meets trouble; `calls` counts how often it passes each point if nothing disturbs it."""

    work: Path
    command: str

    def __post_init__(self) -> None:
        write_folder(self.work / "data", 24, 12)
        (self.work / "data" / "classes.txt").write_text("background\none\ntwo\nthree\nfour\n")
        for _ in range(2):  # the first one makes caches
            shutil.rmtree(self.work / "reference", ignore_errors=True)
            code, text = self.run(self.work / "reference")
            assert code == 0, text
        self.wanted = contents(self.work / "reference")
        self.calls = json.loads((self.work / "calls.json").read_text())

    def run(self, out: Path, kill: Kill | None = None, workers: int = 0, size: int = 0) -> tuple[int, str]:
        words = COMMANDS[self.command].format(data=self.work / "data", model=MODEL, workers=workers).split()
        return attempt([*words, "--out", str(out), "--resume"], self.work, kill, size)

    def finish(self, out: Path) -> None:
        """Resumes without trouble."""
        code, text = self.run(out)
        assert code == 0, text[-800:]
        self.check(out)

    def check(self, out: Path) -> None:
        """The result must be that of the undisturbed command, byte for byte."""
        found, wanted = contents(out), self.wanted
        assert not [name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)]
        shutil.rmtree(out)
        assert not list(out.parent.glob(f"*{out.name}*")), "something is left beside it"


@pytest.fixture(scope="package")
def trial(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Trial:
    command = getattr(request, "param", "run")
    return Trial(tmp_path_factory.mktemp(command), command)
