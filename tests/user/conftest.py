"""What the tests of commands share: a story played once, and the line of a command that is refused."""

from pathlib import Path

import pytest

from tests.user.story import SOLVED, Capture, Refused, Said, play, tiss, write_folder
from tiss.cli.main import main


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders warehouse, tonight, tomorrow with pictures; models first → second → third."""
    return play(tmp_path_factory.mktemp("story"))


@pytest.fixture(scope="session")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that keeps sums, base (disc, square), and labelled folders of what it does not know: stars, moons."""
    folder = tmp_path_factory.mktemp("solved")
    write_folder(folder / "warehouse", ["disc", "square"], 24, side=64)
    write_folder(folder / "stars", ["star"], 12, seed=1, side=64)
    write_folder(folder / "moons", ["moon"], 4, seed=2, side=64)
    tiss("train", folder / "warehouse", "--out", folder / "base", *SOLVED)
    return folder


@pytest.fixture
def said(capsys: Capture) -> Said:
    """Runs a command that must end with `code`; returns what it printed, with its complaints where it failed."""

    def run(*words: object, code: int = 0) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == code
        printed = capsys.readouterr()
        return printed.out + (printed.err if code else "")

    return run


@pytest.fixture
def refused(capsys: Capture) -> Refused:
    """Runs a command that must end with code 2 and one line (`last`: with any lines before it); returns that line."""

    def run(*words: object, last: bool = False) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert last or len(lines) == 1
        assert lines[-1].startswith("tiss: ")
        return lines[-1]

    return run
