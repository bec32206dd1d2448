"""The real VOC, where it is at hand: TISS_VOC names the folder that holds VOCdevkit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiss.cli.data import main

ROOT = os.environ.get("TISS_VOC", "")


@pytest.mark.slow
@pytest.mark.skipif(not ROOT, reason="TISS_VOC names no folder with VOCdevkit")
def test_every_published_list_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TISS_CACHE", str(tmp_path))
    assert main(["verify", "voc", "--root", ROOT]) == 0
    text = capsys.readouterr().out
    assert "20 of 20 published lists confirmed by SHA-256, 11 of 11 by their count." in text
    assert "10582 images" in text
    assert "1449 images" in text
