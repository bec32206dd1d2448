from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.samples import make_folder, make_voc
from tests.data.test_verify import FAULTS, break_everything
from tiss.cli.data import main
from tiss.errors import TissError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TISS_CACHE", str(tmp_path / "cache"))
    return make_folder(tmp_path / "data")


def test_verify_good_data(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "folder", "--root", str(root)]) == 0
    text = capsys.readouterr().out
    assert "train     3 images, 12×8 to 12×8 pixels, labels 0 to 2, 11.11 % ignored, no faults" in text
    assert "1-1   overlapped     0       2" in text
    assert "Nothing is published of these lists." in text


def test_verify_lists_every_fault(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    break_everything(root)
    assert main(["verify", "folder", "--root", str(root)]) == 1
    text = capsys.readouterr().out
    faults = [line for line in text.splitlines() if line.startswith("fault: ")]
    assert len(faults) == len(FAULTS)
    assert f"{len(FAULTS)} faults" in text


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_verify_compares_with_published_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    monkeypatch.setenv("TISS_CACHE", str(tmp_path / "cache"))
    train = {f"id{label}": [label] for label in range(1, 21)}
    root = make_voc(tmp_path / "data", train, {"t": [1]})
    assert main(["verify", "voc", "--root", str(root), "--task", "15-5", "--table", form]) == 1
    text = capsys.readouterr().out
    assert "difference: train: 20 ids in the list, published are 10582" in text
    assert "0 of 4 published lists confirmed by SHA-256." in text
    assert {"text": "DIFFERS", "markdown": "| ---", "latex": r"\begin{tabular}"}[form] in text


def test_mistakes_are_one_line(root: Path) -> None:
    for words in (["verify"], ["verify", "folder", "--rot", "x"], ["dance"], []):
        with pytest.raises(TissError, match="--help") as caught:
            main(words)
        assert "\n" not in str(caught.value)
    with pytest.raises(TissError, match="did you mean 'folder'"):
        main(["verify", "foldr", "--root", str(root)])


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "tiss data verify voc --root VOCdevkit" in capsys.readouterr().out
