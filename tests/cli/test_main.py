from __future__ import annotations

import errno
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tiss.cli import main as module


def test_help_of_every_command_is_quick() -> None:
    """Not even the help of `run` imports torch."""
    code = """
import sys
from tiss.cli.main import COMMANDS, main
for name in COMMANDS:
    try:
        assert main([*name.split(), "--help"]) == 0, name
    except SystemExit as stop:
        assert stop.code == 0, name
    assert "torch" not in sys.modules, name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in module.COMMANDS:
        assert f"usage: tiss {name}" in done.stdout


def failing(error: Exception) -> types.SimpleNamespace:
    def main(words: list[str]) -> int:
        raise error

    return types.SimpleNamespace(main=main)


def test_a_full_disk_anywhere_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", "report.html")
    monkeypatch.setattr(module, "import_module", lambda name: failing(error))
    assert module.main(["report"]) == 2
    assert capsys.readouterr().err == "tiss: report.html: No space left on device\n"


def test_other_errors_of_the_system_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "import_module", lambda name: failing(OSError(errno.EBADF, "bad")))
    with pytest.raises(OSError, match="bad"):
        module.main(["report"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run", "with --resume"),
        ("grid", "the same command resumes"),
        ("eval", "stopped\n"),
    ],
)
def test_what_resumes_after_an_interruption(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("tiss.cli.main.dispatch", interrupted)
    assert module.main([command]) == 130
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--steps", "0"),
        ("--steps", "-1"),
        ("--train.batch", "0"),
        ("--train.epochs", "0"),
        ("--train.epochs", "-1"),
        ("--train.step_epochs", "0"),
        ("--train.accumulate", "0"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    flag: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert module.main(["run", "--data", "shapes", "--method", "ft", "--out", str(out), flag, value]) == 2
    assert f"{flag} {value}: " in capsys.readouterr().err
    assert not out.exists()
