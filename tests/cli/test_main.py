import errno
import subprocess
import sys
from unittest.mock import Mock

import pytest

from tests.user.story import Capture, Patch
from tiss.cli import main as module
from tiss.cli.flags import NoOptions


def test_help_of_every_command_is_quick():
    """Not even the help of `run` imports torch."""
    code = """
import sys
from tiss.cli.main import COMMANDS, main
for name in ("", *COMMANDS):
    assert main([*name.split(), "--help"]) == 0, name
    assert "torch" not in sys.modules, name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "start here:\n  tiss demo" in done.stdout
    for name in module.COMMANDS:
        assert f"usage: tiss {name}" in done.stdout


def failing(error: BaseException) -> Mock:
    """Stands for a module with a command that fails."""

    def run(options: NoOptions) -> int:
        raise error

    return Mock(report=run)


def test_a_full_disk_anywhere_is_one_line(monkeypatch: Patch, capsys: Capture):
    error = OSError(errno.ENOSPC, "No space left on device", "report.html")
    monkeypatch.setattr(module, "import_module", lambda name: failing(error))
    assert module.main(["report"]) == 2
    assert capsys.readouterr().err == "tiss: report.html: No space left on device\n"


def test_other_errors_of_the_system_are_not_hidden(monkeypatch: Patch):
    monkeypatch.setattr(module, "import_module", lambda name: failing(OSError(errno.EBADF, "bad")))
    with pytest.raises(OSError, match="bad"):
        module.main(["report"])


@pytest.mark.parametrize(
    ("command", "said"),
    [("run", "with --resume"), ("grid", "the same command resumes"), ("eval", "stopped\n")],
)
def test_what_resumes_after_an_interruption(command: str, said: str, monkeypatch: Patch, capsys: Capture):
    monkeypatch.setattr(module, "dispatch", Mock(side_effect=KeyboardInterrupt))
    assert module.main([command]) == 130
    assert said in capsys.readouterr().err
