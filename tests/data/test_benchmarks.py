"""VOC with SBD and ADE20K, as their makers lay them out."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import make_voc, write_mask, write_picture
from tiss.cli.main import main
from tiss.data.base import DATASETS
from tiss.data.benchmarks import (
    ADE20K,
    VOC,
    make_augmented,
    read_matlab_mask,
    voc_colours,
)
from tiss.data.images import load_mask
from tiss.errors import TissError

TRAIN = {"2007_000003": [0, 20, 255], "2007_000001": [0, 1], "2008_000002": [15]}
LISTS = "VOCdevkit/VOC2012/ImageSets/Segmentation"


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    return make_voc(tmp_path / "data", TRAIN, {"2007_000009": [0, 4]})


@pytest.mark.parametrize("inner", ["", "VOCdevkit", "VOCdevkit/VOC2012"])
def test_voc_root_may_be_any_of_three(voc: Path, inner: str) -> None:
    dataset = VOC(str(voc / inner))
    assert DATASETS.get("voc") is VOC
    assert dataset.ids("train") == sorted(TRAIN)
    assert dataset.classes_present("train")["2007_000003"] == {20}
    assert dataset.classes_present("test") == {"2007_000009": {4}}
    assert dataset.read("train", "2007_000003").label.unique().tolist() == [0, 20, 255]
    assert len(dataset.classes) == 20
    assert dataset.root_path() == voc / "VOCdevkit/VOC2012"


def test_voc_train_list_of_paths_or_none(voc: Path) -> None:
    lines = "".join(f"/JPEGImages/{id}.jpg /SegmentationClassAug/{id}.png\n" for id in TRAIN)
    (voc / LISTS / "train_aug.txt").write_text(lines)
    assert VOC(str(voc)).ids("train") == sorted(TRAIN)
    (voc / LISTS / "train_aug.txt").unlink()
    assert VOC(str(voc)).ids("train") == sorted(TRAIN), "all augmented masks but val"
    (voc / LISTS / "val.txt").unlink()
    with pytest.raises(TissError, match=r"val\.txt: the list is missing"):
        VOC(str(voc)).ids("train")


def test_voc_original_masks_only_with_a_warning(voc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner = voc / "VOCdevkit/VOC2012"
    (inner / "SegmentationClassAug").rename(inner / "SegmentationClass")
    (voc / LISTS / "train_aug.txt").rename(voc / LISTS / "train.txt")
    assert VOC(str(voc)).ids("train") == sorted(TRAIN)
    assert "1,464 masks instead of the 10,582" in capsys.readouterr().err
    (inner / "SegmentationClass").rename(inner / "elsewhere")
    with pytest.raises(TissError, match="neither SegmentationClassAug nor SegmentationClass"):
        VOC(str(voc)).ids("train")


def test_voc_faults_are_named(voc: Path, tmp_path: Path) -> None:
    mask = voc / "VOCdevkit/VOC2012/SegmentationClassAug/2007_000001.png"
    write_mask(mask, [0, 37])
    with pytest.raises(TissError, match=r"2007_000001\.png: label 37"):
        VOC(str(voc)).classes_present("train")
    mask.unlink()
    with pytest.raises(TissError, match=r"2007_000001\.jpg: its mask .* is missing"):
        VOC(str(voc)).classes_present("train")
    with open(voc / LISTS / "train_aug.txt", "a") as file:
        file.write("2007_000001\n")
    with pytest.raises(TissError, match="2007_000001 is there twice"):
        VOC(str(voc)).ids("train")
    with pytest.raises(TissError, match="VOC2012/JPEGImages"):
        VOC(str(tmp_path))


def test_classes_and_colours_are_the_published_ones() -> None:
    colours = voc_colours()
    assert len(colours) == 21
    assert [colours[n] for n in (1, 5, 8, 20)] == [(128, 0, 0), (128, 0, 128), (64, 0, 0), (0, 64, 128)]
    assert len(set(ADE20K.classes)) == 150
    assert (ADE20K.classes[0], ADE20K.classes[-1], ADE20K.background_in_test) == ("wall", "flag", 255)


@pytest.mark.slow
@pytest.mark.skipif("TISS_VOC" not in os.environ, reason="TISS_VOC names no folder with VOCdevkit")
def test_every_published_list_is_confirmed_by_the_real_voc(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "verify", "voc", "--root", os.environ["TISS_VOC"]]) == 0
    text = capsys.readouterr().out
    assert "20 of 20 published lists confirmed by SHA-256, 11 of 11 by their count." in text
    assert "10582 images" in text
    assert "1449 images" in text


def element(kind: int, data: bytes, order: str = "<") -> bytes:
    if len(data) <= 4 and kind != 14:
        return struct.pack(f"{order}I", (len(data) << 16) | kind) + data.ljust(4, b"\0")
    return struct.pack(f"{order}II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(kind: int, shape: tuple[int, ...], content: bytes, order: str = "<") -> bytes:
    flags = element(6, struct.pack(f"{order}II", kind, 0), order)
    place = element(5, struct.pack(f"{order}ii", *shape), order) + element(1, b"", order)
    return element(14, flags + place + content, order)


def matlab_file(
    mask: np.ndarray, order: str = "<", packed: bool = True, field: str = "Segmentation"
) -> bytes:
    """A file as SBD's: GTcls, a struct with a field before the mask."""
    fields = b"".join(name.encode().ljust(20, b"\0") for name in ("CategoriesPresent", field))
    content = element(5, struct.pack(f"{order}i", 20), order) + element(1, fields, order)
    content += matrix(6, (1, 1), element(9, struct.pack(f"{order}d", 15.0), order), order)
    content += matrix(9, mask.shape, element(2, mask.tobytes(order="F"), order), order)
    body = matrix(2, (1, 1), content, order)
    if packed:
        body = zlib.compress(body)
        body = struct.pack(f"{order}II", 15, len(body)) + body
    return b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}HH", 0x0100, 0x4D49) + body


MASK = np.array([[0, 1, 2], [20, 15, 0]], np.uint8)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("packed", [True, False])
def test_reads_sbd_masks(tmp_path: Path, order: str, packed: bool) -> None:
    (tmp_path / "x.mat").write_bytes(matlab_file(MASK, order, packed))
    assert np.array_equal(read_matlab_mask(tmp_path / "x.mat"), MASK)


GOOD, PLAIN = matlab_file(MASK), matlab_file(MASK, packed=False)
BROKEN = [b"", GOOD[:150], GOOD[:-9], PLAIN[:-20], matlab_file(MASK, field="Other"), GOOD[:128] + bytes(64)]


@pytest.mark.parametrize("data", BROKEN)
def test_broken_sbd_masks_are_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.mat").write_bytes(data)
    with pytest.raises(TissError, match=r"x\.mat: not a mask of SBD"):
        read_matlab_mask(tmp_path / "x.mat")


@pytest.fixture
def sbd(tmp_path: Path) -> tuple[Path, Path]:
    """VOC with a train and a val image; SBD with both and two more."""
    voc, sbd = tmp_path / "VOC2012", tmp_path / "benchmark_RELEASE/dataset"
    (sbd / "cls").mkdir(parents=True)
    for id in ("t", "v", "x", "y"):
        write_picture(voc / f"JPEGImages/{id}.jpg")
        (sbd / f"cls/{id}.mat").write_bytes(matlab_file(np.full((8, 12), 7, np.uint8)))
    (voc / "ImageSets/Segmentation").mkdir(parents=True)
    for name, id in (("train", "t"), ("val", "v")):
        write_mask(voc / f"SegmentationClass/{id}.png", [0, 3, 255])
        (voc / f"ImageSets/Segmentation/{name}.txt").write_text(f"{id}\n")
    (sbd / "train.txt").write_text("v\nx\n")
    (sbd / "val.txt").write_text("t\ny\n")
    return voc, sbd.parent


def test_augmented_masks(sbd: tuple[Path, Path]) -> None:
    voc = sbd[0]
    assert make_augmented(*sbd) == 4
    dataset = VOC(str(voc))
    assert dataset.classes_present("train") == {"t": {3}, "x": {7}, "y": {7}}
    assert dataset.classes_present("test") == {"v": {3}}
    assert 255 in load_mask(voc / "SegmentationClassAug/t.png"), "VOC's own mask has the border"
    assert not list(voc.glob(".*"))
    with pytest.raises(TissError, match="already there"):
        make_augmented(*sbd)


def test_a_broken_sbd_mask_leaves_nothing_half_done(sbd: tuple[Path, Path]) -> None:
    voc = sbd[0]
    (sbd[1] / "dataset/cls/x.mat").write_bytes(b"hello")
    with pytest.raises(TissError, match=r"x\.mat: not a mask of SBD"):
        make_augmented(*sbd)
    assert not (voc / "SegmentationClassAug").exists()
    assert not (voc / "ImageSets/Segmentation/train_aug.txt").exists()
    with pytest.raises(TissError, match="no dataset/cls"):
        make_augmented(voc, voc)


def test_ade20k(tmp_path: Path) -> None:
    base = tmp_path / "ADEChallengeData2016"
    for name, labels in (("training/2", [0, 150]), ("training/1", [1]), ("validation/3", [7])):
        write_picture(base / f"images/{name}.jpg")
        write_mask(base / f"annotations/{name}.png", labels)
    for root in (tmp_path, base):
        dataset = ADE20K(str(root))
        assert dataset.ids("train") == ["1", "2"]
        assert dataset.classes_present("train") == {"1": {1}, "2": {150}}
        assert dataset.classes_present("test") == {"3": {7}}
    assert len(dataset.colours()) == 151
    assert dataset.colours()[1] == (120, 120, 120)
    (base / "images/training/1.jpg").unlink()
    with pytest.raises(TissError, match=r"1\.png: its image"):
        ADE20K(str(base)).ids("train")
    (base / "annotations/validation/3.png").unlink()
    with pytest.raises(TissError, match=r"3\.jpg: its mask"):
        ADE20K(str(base)).classes_present("test")
    with pytest.raises(TissError, match=r"no ADEChallengeData2016/images/training; did you mean .*2016\?"):
        ADE20K(str(base / "images"))
    base.rename(tmp_path / "ade")
    with pytest.raises(TissError, match=r"did you mean .*/ade\?"):
        ADE20K(str(tmp_path))


def test_ade20k_takes_any_suffix_and_no_hidden_files(tmp_path: Path) -> None:
    for name in ("1.JPG", "._1.jpg", "2.jpg"):
        write_picture(tmp_path / f"images/training/{name}")
    for name in ("1.png", "2.png", "._1.png"):
        write_mask(tmp_path / f"annotations/training/{name}", [1])
    assert ADE20K(str(tmp_path)).classes_present("train") == {"1": {1}, "2": {1}}
