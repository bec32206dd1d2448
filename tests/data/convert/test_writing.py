from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.samples import write_picture
from tiss.data.convert import Found, Labelled, Options, write_folder
from tiss.data.convert.raster import Polygon
from tiss.data.convert.writing import save_mask
from tiss.data.folder import Folder
from tiss.errors import TissError

SQUARE = Polygon((((0, 0), (4, 0), (4, 4), (0, 4)),))


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Found:
    monkeypatch.setenv("TISS_CACHE", str(tmp_path / "cache"))
    write_picture(tmp_path / "x.jpg")
    labels = ("cat", "dog", "cat")
    images = [
        Labelled(f"p{n}", tmp_path / "x.jpg", f"p{n}.json", (12, 8), ((labels[n % 3], SQUARE),))
        for n in range(60)
    ]
    return Found(["background", "cat", "dog"], images)


def test_the_test_share_is_chosen_by_id_alone(found: Found, tmp_path: Path) -> None:
    written = write_folder(found, tmp_path / "out", Options(test_share=0.25))
    assert written.classes == ("cat", "dog")
    assert written.train + written.test == 60
    assert 5 < written.test < 26
    tested = Folder(str(tmp_path / "out")).ids("test")
    found.images = found.images[::-2]
    write_folder(found, tmp_path / "fewer", Options(test_share=0.25))
    kept = {item.id for item in found.images}
    assert Folder(str(tmp_path / "fewer")).ids("test") == [id for id in tested if id in kept]


def test_chosen_classes(found: Found, tmp_path: Path) -> None:
    write_folder(found, tmp_path / "out", Options(test_share=0, classes=("dog",)))
    dataset = Folder(str(tmp_path / "out"))
    assert dataset.classes == ("dog",)
    assert dataset.classes_present("train")["p1"] == {1}
    assert dataset.classes_present("train")["p0"] == frozenset()
    with pytest.raises(TissError, match="classes no 'bird' here; there are cat, dog"):
        write_folder(found, tmp_path / "other", Options(classes=("bird",)))


def test_links(found: Found, tmp_path: Path) -> None:
    write_folder(found, tmp_path / "out", Options(test_share=0, link=True))
    assert (tmp_path / "out/images/train/p0.jpg").is_symlink()
    assert Folder(str(tmp_path / "out")).read("train", "p0").image.shape == (3, 8, 12)


def test_faults(found: Found, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(TissError, match=r"out .*already"):
        write_folder(found, tmp_path / "full", Options())
    with pytest.raises(TissError, match="test_share"):
        write_folder(found, tmp_path / "out", Options(test_share=1.0))
    with pytest.raises(TissError, match="'p0' is there twice"):
        write_folder(Found(["cat"], [found.images[0]] * 2), tmp_path / "out", Options())
    with pytest.raises(TissError, match="nothing to convert"):
        write_folder(Found(["cat"], []), tmp_path / "out", Options())
    for classes, words in (
        (["background"], "no class"),
        (["a", "a"], "'a' is there twice"),
        (["a,b"], "comma"),
        (["", "a"], "a label has no name"),
    ):
        with pytest.raises(TissError, match=words):
            write_folder(Found(classes, found.images), tmp_path / "out", Options())
    with pytest.raises(TissError, match="254 classes"):
        write_folder(Found([f"c{n}" for n in range(254)], found.images), tmp_path / "out", Options())
    assert not (tmp_path / "out").exists()


def test_masks_keep_their_numbers_and_look_like_something(tmp_path: Path) -> None:
    mask = np.array([[0, 1, 255]], np.uint8)
    save_mask(mask, tmp_path / "x.png")
    image = Image.open(tmp_path / "x.png")
    assert image.mode == "P"
    assert np.array_equal(np.array(image), mask)
    assert image.convert("RGB").getpixel((1, 0)) == (128, 0, 0)
