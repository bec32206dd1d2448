from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import write_mask, write_picture
from tiss.data.images import load_mask
from tiss.data.voc import VOC, make_augmented, read_matlab_mask
from tiss.errors import TissError


def element(kind: int, data: bytes, order: str = "<") -> bytes:
    if len(data) <= 4 and kind != 14:
        word = struct.pack(f"{order}I", (len(data) << 16) | kind)
        return word + data.ljust(4, b"\0")
    return struct.pack(f"{order}II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(kind: int, shape: tuple[int, int], content: bytes, order: str = "<") -> bytes:
    flags = element(6, struct.pack(f"{order}II", kind, 0), order)
    return element(
        14,
        flags + element(5, struct.pack(f"{order}ii", *shape), order) + element(1, b"", order) + content,
        order,
    )


def matlab_file(
    mask: np.ndarray, order: str = "<", compressed: bool = True, field: bytes = b"Segmentation"
) -> bytes:
    """A file as SBD's: GTcls, a struct with a field before the mask."""
    fields = b"".join(name.ljust(20, b"\0") for name in (b"CategoriesPresent", field))
    content = element(5, struct.pack(f"{order}i", 20), order) + element(1, fields, order)
    content += matrix(6, (1, 1), element(9, struct.pack(f"{order}d", 15.0), order), order)
    content += matrix(9, mask.shape, element(2, mask.tobytes(order="F"), order), order)  # type: ignore[arg-type]
    body = matrix(2, (1, 1), content, order)
    if compressed:
        packed = zlib.compress(body)
        body = struct.pack(f"{order}II", 15, len(packed)) + packed
    version = struct.pack(f"{order}H", 0x0100) + struct.pack(f"{order}H", 0x4D49)
    return b"MATLAB 5.0 MAT-file".ljust(124) + version + body


MASK = np.array([[0, 1, 2], [20, 15, 0]], np.uint8)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compressed", [True, False])
def test_reads_masks(tmp_path: Path, order: str, compressed: bool) -> None:
    (tmp_path / "x.mat").write_bytes(matlab_file(MASK, order, compressed))
    assert np.array_equal(read_matlab_mask(tmp_path / "x.mat"), MASK)


def test_agrees_with_another_writer(tmp_path: Path) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    scipy_io.savemat(
        tmp_path / "x.mat", {"GTcls": {"Boundaries": [1.0], "Segmentation": MASK}}, do_compression=True
    )
    assert np.array_equal(read_matlab_mask(tmp_path / "x.mat"), MASK)


def test_broken_files_are_named(tmp_path: Path) -> None:
    good = matlab_file(MASK)
    plain = matlab_file(MASK, compressed=False)
    broken = [
        b"",
        b"hello",
        good[:150],
        good[:-9],
        plain[:-20],
        matlab_file(MASK, field=b"Other"),
        good[:128] + bytes(64),
    ]
    for number, data in enumerate(broken):
        (tmp_path / f"{number}.mat").write_bytes(data)
        with pytest.raises(TissError, match=rf"{number}\.mat: not a mask of SBD"):
            read_matlab_mask(tmp_path / f"{number}.mat")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """VOC with a train and a val picture; SBD with both and two more."""
    monkeypatch.setenv("TISS_CACHE", str(tmp_path / "cache"))
    voc, sbd = tmp_path / "VOC2012", tmp_path / "benchmark_RELEASE" / "dataset"
    for id in ("t", "v", "x", "y"):
        write_picture(voc / f"JPEGImages/{id}.jpg")
        (sbd / "cls").mkdir(parents=True, exist_ok=True)
        (sbd / f"cls/{id}.mat").write_bytes(matlab_file(np.full((8, 12), 7, np.uint8)))
    (voc / "ImageSets/Segmentation").mkdir(parents=True)
    for name, id in (("train", "t"), ("val", "v")):
        write_mask(voc / f"SegmentationClass/{id}.png", [0, 3, 255])
        (voc / f"ImageSets/Segmentation/{name}.txt").write_text(f"{id}\n")
    (sbd / "train.txt").write_text("v\nx\n")
    (sbd / "val.txt").write_text("t\ny\n")
    return voc, sbd.parent


def test_augmented_masks(folders: tuple[Path, Path]) -> None:
    voc, sbd = folders
    assert make_augmented(voc, sbd) == 4
    dataset = VOC(str(voc))
    assert dataset.ids("train") == ["t", "x", "y"]
    assert dataset.classes_present("train") == {"t": {3}, "x": {7}, "y": {7}}
    assert dataset.classes_present("test") == {"v": {3}}
    assert 255 in load_mask(voc / "SegmentationClassAug/t.png"), "VOC's own mask has the border"
    assert sorted(path.name for path in voc.iterdir() if path.name.startswith(".")) == []
    with pytest.raises(TissError, match="already there"):
        make_augmented(voc, sbd)


def test_a_broken_mask_leaves_nothing_half_done(folders: tuple[Path, Path]) -> None:
    voc, sbd = folders
    (sbd / "dataset/cls/x.mat").write_bytes(b"hello")
    with pytest.raises(TissError, match=r"x\.mat: not a mask of SBD"):
        make_augmented(voc, sbd)
    assert not (voc / "SegmentationClassAug").exists()
    assert not (voc / "ImageSets/Segmentation/train_aug.txt").exists()
    with pytest.raises(TissError, match="no dataset/cls"):
        make_augmented(voc, voc)
