from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.samples import make_voc, write_mask
from tiss.data.base import DATASETS
from tiss.data.voc import VOC, voc_colours
from tiss.errors import TissError

TRAIN = {"2007_000003": [0, 20, 255], "2007_000001": [0, 1], "2008_000002": [15]}
TEST = {"2007_000009": [0, 4]}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TISS_CACHE", str(tmp_path / "cache"))
    return make_voc(tmp_path / "data", TRAIN, TEST)


@pytest.mark.parametrize("inner", ["", "VOCdevkit", "VOCdevkit/VOC2012"])
def test_root_may_be_any_of_three(root: Path, inner: str) -> None:
    dataset = VOC(str(root / inner))
    assert DATASETS.get("voc") is VOC
    assert dataset.ids("train") == sorted(TRAIN)
    assert dataset.classes_present("train")["2007_000003"] == {20}
    assert dataset.classes_present("test") == {"2007_000009": {4}}
    assert dataset.read("train", "2007_000003").label.unique().tolist() == [0, 20, 255]
    assert len(dataset.classes) == 20
    assert dataset.root_path() == root / "VOCdevkit/VOC2012"


def test_lists_of_paths_are_read_too(root: Path) -> None:
    lines = "".join(f"/JPEGImages/{id}.jpg /SegmentationClassAug/{id}.png\n" for id in TRAIN)
    (root / "VOCdevkit/VOC2012/ImageSets/Segmentation/train_aug.txt").write_text(lines)
    assert VOC(str(root)).ids("train") == sorted(TRAIN)


def test_without_its_list_train_is_all_augmented_masks_but_val(root: Path) -> None:
    (root / "VOCdevkit/VOC2012/ImageSets/Segmentation/train_aug.txt").unlink()
    assert VOC(str(root)).ids("train") == sorted(TRAIN)
    (root / "VOCdevkit/VOC2012/ImageSets/Segmentation/val.txt").unlink()
    with pytest.raises(TissError, match=r"val\.txt: the list is missing"):
        VOC(str(root)).ids("train")


def test_original_masks_only_with_a_warning(root: Path) -> None:
    voc = root / "VOCdevkit/VOC2012"
    (voc / "SegmentationClassAug").rename(voc / "SegmentationClass")
    (voc / "ImageSets/Segmentation/train_aug.txt").rename(voc / "ImageSets/Segmentation/train.txt")
    with pytest.warns(UserWarning, match="1,464 masks instead of the 10,582"):
        assert VOC(str(root)).ids("train") == sorted(TRAIN)
    (voc / "SegmentationClass").rename(voc / "elsewhere")
    with pytest.raises(TissError, match="neither SegmentationClassAug nor SegmentationClass"):
        VOC(str(root)).ids("train")


def test_faults_are_named(root: Path, tmp_path: Path) -> None:
    voc = root / "VOCdevkit/VOC2012"
    write_mask(voc / "SegmentationClassAug/2007_000001.png", [0, 37])
    with pytest.raises(TissError, match=r"2007_000001\.png: label 37"):
        VOC(str(root)).classes_present("train")
    (voc / "SegmentationClassAug/2007_000001.png").unlink()
    with pytest.raises(TissError, match=r"2007_000001\.jpg: its mask .* is missing"):
        VOC(str(root)).classes_present("train")
    with open(voc / "ImageSets/Segmentation/train_aug.txt", "a") as file:
        file.write("2007_000001\n")
    with pytest.raises(TissError, match="2007_000001 is there twice"):
        VOC(str(root)).ids("train")
    with pytest.raises(TissError, match="no VOC2012/JPEGImages"):
        VOC(str(tmp_path / "cache" / ".."))


def test_colours_are_the_published_ones() -> None:
    colours = voc_colours()
    assert len(colours) == 21
    assert colours[1] == (128, 0, 0)
    assert colours[5] == (128, 0, 128)
    assert colours[8] == (64, 0, 0)
    assert colours[20] == (0, 64, 128)
