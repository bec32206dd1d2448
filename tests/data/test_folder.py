import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.samples import write_mask, write_noise, write_picture
from tiss.data.base import DATASETS
from tiss.data.checks import check_split, open_for_checking, shared_images
from tiss.data.folder import Folder
from tiss.errors import TissError


def test_reads_what_is_there(root: Path) -> None:
    dataset = Folder(str(root))
    assert DATASETS.get("folder") is Folder
    assert dataset.classes == ("cat", "dog")
    assert dataset.has_background
    assert dataset.ids("train") == ["a", "b", "c"]
    assert dataset.ids("test") == ["d"]
    sample = dataset.read("train", "c")
    assert sample.image.shape == (3, 8, 12)
    assert sample.label.unique().tolist() == [1, 2, 255]
    assert dataset.classes_present("train") == {"a": {1}, "b": {2}, "c": {1, 2}}


def test_val_serves_as_test_and_any_suffix_will_do(root: Path) -> None:
    for kind in ("images", "masks"):
        (root / kind / "test").rename(root / kind / "val")
    Image.open(root / "images/val/d.jpg").save(root / "images/val/d.webp")
    (root / "images/val/d.jpg").unlink()
    write_picture(root / "images/val/deep/e.png")
    write_mask(root / "masks/val/deep/e.png", [2])
    assert Folder(str(root)).classes_present("test") == {"d": {1, 2}, "deep/e": {2}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("classes.txt", "# mine\nbackground\ncat\n\ndog\n"),
        ("classes.json", '["background", "cat", "dog"]'),
        ("classes.yaml", "classes: [cat, dog]\nbackground: true\n"),
    ],
)
def test_class_list_forms(root: Path, name: str, text: str) -> None:
    (root / "classes.txt").unlink()
    (root / name).write_text(text)
    dataset = Folder(str(root))
    assert dataset.classes == ("cat", "dog")
    assert dataset.has_background


def test_without_background_the_first_class_is_value_0(root: Path) -> None:
    (root / "classes.txt").write_text("road\ncat\ndog\n")
    dataset = Folder(str(root))
    assert not dataset.has_background
    assert dataset.classes_present("train") == {"a": {1, 2}, "b": {1, 3}, "c": {2, 3}}
    assert dataset.read("train", "c").label.unique().tolist() == [2, 3, 255]
    write_mask(root / "masks/train/a.png", [0, 254])
    with pytest.raises(TissError, match=r"a\.png: label 254 .* first line of the class list"):
        dataset.read("train", "a")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("classes.txt", "", "the class list is empty"),
        ("classes.txt", "cat\ncat\n", "'cat' is there twice"),
        ("classes.txt", "cat\nbackground\n", "the background must be the first entry"),
        ("classes.txt", "cat,dog\n", "comma"),
        ("classes.txt", "\n".join(f"c{n}" for n in range(254)), "254 classes"),
        ("classes.json", "{", "bad JSON"),
        ("classes.json", '{"classes": ["a"], "colour": 1}', "unknown key 'colour'"),
        ("classes.json", '{"classes": {"a": 1}}', "expected a list"),
        ("classes.yaml", "classes: [a]\nbackground: maybe\n", "true or false"),
    ],
)
def test_bad_class_lists(root: Path, name: str, text: str, words: str) -> None:
    (root / "classes.txt").unlink()
    (root / name).write_text(text)
    with pytest.raises(TissError, match=words) as caught:
        Folder(str(root))
    assert name in str(caught.value)


def test_no_class_list_or_two(root: Path) -> None:
    (root / "classes.json").write_text("[]")
    with pytest.raises(TissError, match="keep one of the two"):
        Folder(str(root))
    (root / "classes.json").unlink()
    (root / "classes.txt").unlink()
    with pytest.raises(TissError, match=r"classes\.txt: the class list is missing"):
        Folder(str(root))


def test_colour_coded_masks(root: Path) -> None:
    (root / "colours.txt").write_text("background 0 0 0\ncat 200,10,20\ndog 7 8 9\nvoid 255 255 255\n")
    pixels = np.zeros((8, 12, 3), np.uint8)
    pixels[0], pixels[1], pixels[2] = (200, 10, 20), (7, 8, 9), 255
    Image.fromarray(pixels).save(root / "masks/train/a.png")
    dataset = Folder(str(root))
    assert dataset.read("train", "a").label[:4, 0].tolist() == [1, 2, 255, 0]
    assert dataset.colours() == [(0, 0, 0), (200, 10, 20), (7, 8, 9)]
    assert dataset.classes_present("train")["b"] == {2}, "grey masks hold numbers beside a colour map"
    (root / "colours.txt").write_text("background 0 0 0\nbird 200 10 20\n")
    with pytest.raises(TissError, match=r"'bird' is not in classes\.txt"):
        Folder(str(root))
    (root / "colours.txt").write_text("cat 0 0 300\n")
    with pytest.raises(TissError, match="line 1: expected"):
        Folder(str(root))


def test_faults_of_the_folders_are_all_found(root: Path) -> None:
    write_picture(root / "images/train/a.png")
    (root / "masks/train/b.png").unlink()
    write_mask(root / "masks/train/z.png", [0])
    shutil.copy(root / "images/train/c.jpg", root / "masks/train/c.jpg")
    (root / "masks/train/c.png").unlink()
    dataset = Folder(str(root))
    problems = dataset.listing("train").problems
    assert len(problems) == 4
    faults = ("a.png: a.jpg has the same name", "b.jpg: no mask", "z.png: no image", "c.jpg: a JPEG mask")
    for words in faults:
        assert any(words in problem for problem in problems), words
    with pytest.raises(TissError, match=r"and 3 more\).*tiss data verify folder --root"):
        dataset.ids("train")


def test_missing_folders(tmp_path: Path, root: Path) -> None:
    with pytest.raises(TissError, match="needs the folder"):
        Folder(None)
    with pytest.raises(TissError, match="is not a folder"):
        Folder(str(tmp_path / "nowhere"))
    with pytest.raises(TissError, match="has no images"):
        Folder(str(tmp_path))
    shutil.rmtree(root / "masks/test")
    with pytest.raises(TissError, match="masks/test: the folder is missing"):
        Folder(str(root)).ids("test")
    with pytest.raises(TissError, match="no split 'tests'"):
        Folder(str(root)).ids("tests")


def test_mask_of_another_size_is_named(root: Path) -> None:
    write_mask(root / "masks/train/a.png", [0, 1], width=11)
    dataset = Folder(str(root))
    for look in (lambda: dataset.read("train", "a"), lambda: dataset.classes_present("train")):
        with pytest.raises(TissError, match=r"a\.png: 11 × 8, but its image is 12 × 8"):
            look()


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
