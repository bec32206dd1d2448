from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.samples import write_picture
from tiss.data.convert import (
    Found,
    Labelled,
    Options,
    find_lookalikes,
    find_unlabelled,
    summarise,
    write_folder,
)
from tiss.data.convert.raster import Polygon


def square(side: int) -> Polygon:
    return Polygon((((0, 0), (side, 0), (side, side), (0, side)),))


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """Two pictures of 12 × 8 = 96 pixels: a cat of 16 under a dog of 4; two cats, one hidden by the other."""
    images = []
    for name, objects in (
        ("a", (("cat", square(4)), ("dog", square(2)))),
        ("b", (("cat", square(4)), ("cat", square(3)))),
    ):
        write_picture(tmp_path / f"photos/{name}.jpg")
        images.append(
            Labelled(name, tmp_path / f"photos/{name}.jpg", name, (12, 8), (*objects, ("void", square(1))))
        )
    return Found(["cat", "dog", "bird", "void"], images)


def test_pictures_objects_and_share_of_pixels(found: Found, tmp_path: Path) -> None:
    rows = summarise(found, write_folder(found, tmp_path / "out", Options()))
    assert [(row.name, row.images, row.objects) for row in rows] == [
        ("cat", 2, 3),
        ("dog", 1, 1),
        ("bird", 0, 0),
    ]
    assert [row.share * 192 for row in rows] == pytest.approx([12 + 15, 3, 0])


def test_only_chosen_classes_are_counted(found: Found, tmp_path: Path) -> None:
    written = write_folder(found, tmp_path / "out", Options(classes=("dog",)))
    (row,) = summarise(found, written)
    assert (row.name, row.images, row.objects) == ("dog", 1, 1)


def test_lookalikes() -> None:
    assert find_lookalikes(["tv", "tvmonitor", "dog"]) == []
    assert find_lookalikes(["tv", "Tv", "T V", "dog"]) == [["tv", "Tv", "T V"]]
    assert find_lookalikes(["road-sign", "roadsign"]) == [["road-sign", "roadsign"]]
    assert find_lookalikes(["background", "_background_", "Void", "void"]) == []
    assert find_lookalikes(["cat", "cat"]) == []


def test_pictures_without_labels_are_found_beside_the_others(found: Found, tmp_path: Path) -> None:
    assert find_unlabelled(found) == []
    for name in ("photos/d.JPG", "photos/c.png", "photos/.e.jpg", "elsewhere/f.jpg"):
        write_picture(tmp_path / name)
    (tmp_path / "photos/notes.txt").write_text("")
    (tmp_path / "photos/folder.jpg").mkdir()
    assert find_unlabelled(found) == [tmp_path / "photos/c.png", tmp_path / "photos/d.JPG"]
