import shutil
from pathlib import Path

import pytest

from tests.data.samples import write_mask, write_noise, write_picture
from tiss.data.checks import check_split, open_for_checking, shared_images
from tiss.data.folder import Folder

FAULTS = (
    "cut.jpg: broken image",
    "a.png: 10 × 8, but its image is 12 × 8",
    "b.png: label 37 (48 pixels) is not one of 0 to 2 or 255",
    "c.jpg: no mask of that name",
    "d.png: d.jpg has the same name except for the suffix",
)


def break_everything(root: Path) -> None:
    """One of each fault of a data set's files."""
    write_noise(root / "images/train/cut.jpg")
    write_mask(root / "masks/train/cut.png", [1], 64, 64)
    data = (root / "images/train/cut.jpg").read_bytes()
    (root / "images/train/cut.jpg").write_bytes(data[:-1500])
    write_mask(root / "masks/train/a.png", [0, 1], width=10)
    write_mask(root / "masks/train/b.png", [0, 37])
    (root / "masks/train/c.png").unlink()
    write_picture(root / "images/test/d.png")


def test_an_empty_class_list_does_not_hide_other_faults(root: Path) -> None:
    (root / "classes.txt").write_text("")
    write_mask(root / "masks/train/a.png", [0, 1], width=10)
    dataset, faults = open_for_checking("folder", str(root))
    assert ["class list is empty" in fault for fault in faults] == [True]
    assert "a.png: 10 × 8" in check_split(dataset, "train").faults[0]


def test_damage_in_the_middle_is_found_by_decoding(root: Path) -> None:
    path = root / "images/train/a.png"
    (root / "images/train/a.jpg").unlink()
    write_noise(path)
    write_mask(root / "masks/train/a.png", [1], 64, 64)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(bytes(data))
    assert check_split(Folder(str(root)), "train", decode=False).faults == []
    assert "a.png: broken image" in check_split(Folder(str(root)), "train", decode=True).faults[0]


def test_what_was_checked_is_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Folder(str(root))
    check_split(dataset, "train")
    monkeypatch.setattr(Folder, "read_label", lambda self, path: pytest.fail("read again"))
    assert [one.classes_present("train")["a"] for one in (dataset, Folder(str(root)))] == [{1}, {1}]


def test_a_picture_in_train_and_test_is_told(root: Path) -> None:
    write_noise(root / "images/train/a.jpg")
    assert shared_images(Folder(str(root))) != [], "made-up pictures are all alike"
    for path in (root / "images/train/b.jpg", root / "images/train/c.jpg"):
        path.unlink()
        (root / "masks/train" / f"{path.stem}.png").unlink()
    assert shared_images(Folder(str(root))) == []
    shutil.copy(root / "images/train/a.jpg", root / "images/test/d.jpg")
    (line,) = shared_images(Folder(str(root)))
    assert "a.jpg: the same image is in the test as" in line
