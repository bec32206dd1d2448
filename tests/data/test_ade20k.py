from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.samples import write_mask, write_picture
from tiss.data.ade20k import ADE20K
from tiss.errors import TissError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TISS_CACHE", str(tmp_path / "cache"))
    base = tmp_path / "ADEChallengeData2016"
    for folder, names in (
        ("training", {"ADE_train_2": [0, 150], "ADE_train_1": [1]}),
        ("validation", {"ADE_val_1": [7]}),
    ):
        for name, labels in names.items():
            write_picture(base / "images" / folder / f"{name}.jpg")
            write_mask(base / "annotations" / folder / f"{name}.png", labels)
    return tmp_path


@pytest.mark.parametrize("inner", ["", "ADEChallengeData2016"])
def test_reads(root: Path, inner: str) -> None:
    dataset = ADE20K(str(root / inner))
    assert dataset.ids("train") == ["ADE_train_1", "ADE_train_2"]
    assert dataset.classes_present("train") == {"ADE_train_1": {1}, "ADE_train_2": {150}}
    assert dataset.classes_present("test") == {"ADE_val_1": {7}}


def test_classes() -> None:
    assert len(set(ADE20K.classes)) == 150
    assert ADE20K.classes[0] == "wall"
    assert ADE20K.classes[-1] == "flag"
    assert ADE20K.background_in_test == 255


def test_colours(root: Path) -> None:
    colours = ADE20K(str(root)).colours()
    assert len(colours) == 151
    assert colours[1] == (120, 120, 120)


def test_faults(root: Path) -> None:
    (root / "ADEChallengeData2016/images/training/ADE_train_1.jpg").unlink()
    with pytest.raises(TissError, match=r"ADE_train_1\.png: its image"):
        ADE20K(str(root)).ids("train")
    (root / "ADEChallengeData2016/annotations/validation/ADE_val_1.png").unlink()
    with pytest.raises(TissError, match=r"ADE_val_1\.jpg: its mask"):
        ADE20K(str(root)).classes_present("test")
    with pytest.raises(TissError, match="no ADEChallengeData2016/images/training"):
        ADE20K(str(root / "ADEChallengeData2016/images"))
