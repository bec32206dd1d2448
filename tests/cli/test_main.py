from __future__ import annotations

import errno
import types

import pytest

from tiss.cli import main as module


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
