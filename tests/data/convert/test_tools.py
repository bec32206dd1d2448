"""CVAT, labelme and Supervisely, as their programs write it."""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.samples import png, write_picture
from tiss.data.convert import Options, read_cvat, read_labelme, read_supervisely, write_folder
from tiss.data.folder import Folder
from tiss.errors import TissError


@pytest.fixture
def cvat(tmp_path: Path) -> Path:
    root = tmp_path / "cvat"
    (root / "SegmentationClass").mkdir(parents=True)
    (root / "labelmap.txt").write_text(
        "# label:color_rgb:parts:actions\nbackground:0,0,0::\ncat:128,0,0::\nroad sign:0,128,0::\n"
    )
    for name in ("a", "b", "c"):
        write_picture(root / f"JPEGImages/{name}.JPG")
        pixels = np.zeros((8, 12, 3), np.uint8)
        pixels[:2] = (128, 0, 0)
        pixels[2] = (0, 128, 0)
        Image.fromarray(pixels).save(root / f"SegmentationClass/{name}.png")
    return root


def test_cvat(cvat: Path, tmp_path: Path) -> None:
    written = write_folder(read_cvat(cvat), tmp_path / "out", Options(test_share=0))
    assert [one.name for one in written.classes] == ["cat", "road sign"]
    label = Folder(str(tmp_path / "out")).read("train", "a").label
    assert label[:, 0].tolist() == [1, 1, 2, 0, 0, 0, 0, 0]


def test_cvat_lists_make_the_splits(cvat: Path, tmp_path: Path) -> None:
    lists = cvat / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("a\nc\n")
    (lists / "val.txt").write_text("b\n")
    written = write_folder(read_cvat(cvat), tmp_path / "out", Options())
    assert (written.train, written.test) == (2, 1)
    assert Folder(str(tmp_path / "out")).ids("test") == ["b"]


def test_cvat_faults(cvat: Path, tmp_path: Path) -> None:
    pixels = np.full((8, 12, 3), 77, np.uint8)
    Image.fromarray(pixels).save(cvat / "SegmentationClass/b.png")
    with pytest.raises(TissError, match=r"b\.png: colour 77 77 77"):
        write_folder(read_cvat(cvat), tmp_path / "out", Options())
    (cvat / "JPEGImages/a.JPG").unlink()
    with pytest.raises(TissError, match=r"a\.png: no image a in .*images"):
        read_cvat(cvat)
    for text, words in (
        ("cat:1,2::", "line 1: expected"),
        ("", "no labels"),
        ("a:1,1,1::\nb:1,1,1::", "'b' has the colour"),
    ):
        (cvat / "labelmap.txt").write_text(text)
        with pytest.raises(TissError, match=words):
            read_cvat(cvat)
    with pytest.raises(TissError, match=r"labelmap\.txt: no such file"):
        read_cvat(tmp_path)


def labelme_file(root: Path, name: str, shapes: list[dict[str, Any]]) -> Path:
    write_picture(root / f"{name}.jpg")
    content = {"imagePath": f"..\\photos\\{name}.jpg", "imageData": None, "imageWidth": 12, "imageHeight": 8}
    (root / f"{name}.json").write_text(json.dumps(content | {"shapes": shapes}))
    return root


def test_labelme(tmp_path: Path) -> None:
    stamp = base64.b64encode(png(np.ones((2, 2), bool))).decode()
    shapes = [
        ("dog", "polygon", [[0, 0], [4, 0], [4, 8], [0, 8]]),
        ("cat", "rectangle", [[4, 0], [6, 0], [6, 2], [4, 2]]),
        ("ball", "circle", [[9, 4], [9, 2]]),
        ("cat", "mask", [[10, 6], [11, 7]]),
        ("line", "linestrip", [[0, 0], [9, 9]]),
        ("_ignore_", "rectangle", [[0, 6], [2, 8]]),
    ]
    objects = [{"label": a, "shape_type": b, "points": c, "mask": stamp} for a, b, c in shapes]
    root = labelme_file(tmp_path / "labels", "a", objects)
    found = read_labelme(root)
    assert sum(found.notes.values()) == 1
    written = write_folder(found, tmp_path / "out", Options(test_share=0))
    assert [one.name for one in written.classes] == ["ball", "cat", "dog"]
    label = Folder(str(tmp_path / "out")).read("train", "a").label.numpy()
    assert (label[:6, :4] == 3).all()
    assert (label[:2, 4:6] == 2).all()
    assert (label[6:, 10:] == 2).all()
    assert (label[6:, :2] == 255).all()
    assert (label == 1).sum() == 12
    assert label[7, 8] == 0


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"points": [[0, 0]], "shape_type": "spiral"}, "a shape of the kind 'spiral'"),
        ({"points": [[0, 0]], "shape_type": "mask", "mask": "???"}, "broken base64"),
        ({"points": [[0], [1]]}, "points must be pairs"),
    ],
)
def test_bad_labelme_shapes(tmp_path: Path, shape: dict[str, Any], words: str) -> None:
    with pytest.raises(TissError, match=rf"a\.json: {words}"):
        read_labelme(labelme_file(tmp_path, "a", [{"label": "x"} | shape]))


def test_labelme_faults(tmp_path: Path) -> None:
    with pytest.raises(TissError, match="no JSON files"):
        read_labelme(tmp_path)
    labelme_file(tmp_path, "a", [])
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(TissError, match=r"a\.json: its image 'a\.jpg' is not in"):
        read_labelme(tmp_path)
    (tmp_path / "a.json").write_text("[" * 5000)
    with pytest.raises(TissError, match=r"a\.json"):
        read_labelme(tmp_path)


def supervisely_project(root: Path, objects: list[dict[str, Any]], sets: tuple[str, ...] = ("one",)) -> Path:
    for name in sets:
        write_picture(root / f"{name}/img/a.jpg")
        (root / f"{name}/ann").mkdir(parents=True, exist_ok=True)
        content = {"size": {"height": 8, "width": 12}, "objects": objects}
        (root / f"{name}/ann/a.jpg.json").write_text(json.dumps(content))
    classes = [{"title": "dog", "shape": "polygon"}, {"title": "cat", "shape": "bitmap"}]
    (root / "meta.json").write_text(json.dumps({"classes": classes}))
    return root


BITMAP = base64.b64encode(zlib.compress(png(np.array([[1, 0], [1, 1]], bool)))).decode()
HOLE = [[[2, 2], [4, 2], [4, 4], [2, 4]]]
FIGURES = [
    ("polygon", [[0, 0], [6, 0], [6, 6], [0, 6]], HOLE),
    ("rectangle", [[7, 0], [9, 2]], []),
    ("point", [[1, 1]], []),
]
OBJECTS: list[dict[str, Any]] = [
    {"classTitle": "dog", "geometryType": kind, "points": {"exterior": outer, "interior": holes}}
    for kind, outer, holes in FIGURES
]
OBJECTS += [{"classTitle": "cat", "geometryType": "bitmap", "bitmap": {"data": BITMAP, "origin": [10, 6]}}]


def test_supervisely(tmp_path: Path) -> None:
    found = read_supervisely(supervisely_project(tmp_path / "project", OBJECTS))
    assert dict(found.notes) == {"figures of the kind point, left out": 1}
    written = write_folder(found, tmp_path / "out", Options(test_share=0))
    assert [one.name for one in written.classes] == ["dog", "cat"]
    label = Folder(str(tmp_path / "out")).read("train", "a").label.numpy()
    expected = np.zeros((8, 12), np.uint8)
    expected[:6, :6] = 1
    expected[2:4, 2:4] = 0
    expected[:2, 7:9] = 1
    expected[6:, 10:] = [[2, 0], [2, 2]]
    assert np.array_equal(label, expected)


def test_spaces_around_a_name_do_not_count(tmp_path: Path) -> None:
    root = supervisely_project(tmp_path / "project", [OBJECTS[0] | {"classTitle": "dog "}])
    assert [label for label, _ in read_supervisely(root).images[0].objects] == ["dog"]
    (root / "meta.json").write_text(json.dumps({"classes": [{"title": "dog"}, {"title": " dog"}]}))
    with pytest.raises(TissError, match="class 'dog' is there twice"):
        write_folder(read_supervisely(root), tmp_path / "out", Options())
    assert not (tmp_path / "out").exists()


def test_supervisely_with_several_data_sets(tmp_path: Path) -> None:
    found = read_supervisely(supervisely_project(tmp_path / "project", OBJECTS, ("one", "two")))
    assert [item.id for item in found.images] == ["one/a", "two/a"]


def test_supervisely_faults(tmp_path: Path) -> None:
    bitmap = {"classTitle": "cat", "geometryType": "bitmap", "bitmap": {"data": "aGVsbG8=", "origin": [0, 0]}}
    with pytest.raises(TissError, match=r"a\.jpg\.json: broken bitmap"):
        read_supervisely(supervisely_project(tmp_path / "project", [bitmap]))
    with pytest.raises(TissError, match="class 'bird' is not in meta"):
        read_supervisely(supervisely_project(tmp_path / "project", [{"classTitle": "bird"}]))
    (tmp_path / "project/one/img/a.jpg").unlink()
    content = {"size": {"width": 1, "height": 1}, "objects": []}
    (tmp_path / "project/one/ann/a.jpg.json").write_text(json.dumps(content))
    with pytest.raises(TissError, match=r"a\.jpg\.json: its image"):
        read_supervisely(tmp_path / "project")
