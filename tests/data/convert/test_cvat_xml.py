"""CVAT for images 1.1, as tasks and projects are exported."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import write_picture
from tiss.data.convert import Found, Labelled, Options, read_cvat, write_folder
from tiss.data.folder import Folder
from tiss.errors import TissError

HEAD = """<?xml version="1.0" encoding="utf-8"?>
<annotations>
  <version>1.1</version>
  <meta><task><id>4</id><size>2</size><mode>annotation</mode>
    <labels>
      <label><name>road sign</name><color>#ff0000</color><type>any</type><attributes></attributes></label>
      <label><name>cat</name><type>any</type></label>
      <label><name>bird</name></label>
      <label><name>rainy</name><type>tag</type></label>
    </labels></task></meta>
"""
SHAPES = """
    <polygon label="cat" source="manual" occluded="0" points="0.00,0.00;6.00,0.00;6.00,8.00;0.00,8.00" z_order="1">
      <attribute name="fur">grey</attribute>
    </polygon>
    <mask label="road sign" source="manual" occluded="0" rle="1, 3, 2" left="2" top="6" width="3" height="2"
      z_order="0"></mask>
    <ellipse label="road sign" cx="9.00" cy="4.00" rx="2.00" ry="3.00" z_order="0"></ellipse>
    <box label="cat" xtl="1" ytl="1" xbr="2" ybr="2" z_order="0"></box>
    <polyline label="cat" points="0,0;3,3" z_order="0"></polyline>
    <tag label="cat" source="manual"></tag>
"""


def export(root: Path, images: str, names: tuple[str, ...] = ("a.jpg",)) -> Path:
    for name in names:
        write_picture(root / "images" / name)
    (root / "annotations.xml").write_text(f"{HEAD}{images}</annotations>\n")
    return root


def image(name: str, inner: str = "", more: str = "") -> str:
    return f'<image id="0" name="{name}" {more} width="12" height="8">{inner}</image>\n'


def test_a_task(tmp_path: Path) -> None:
    root = export(tmp_path / "in", image("a.jpg", SHAPES) + image("night/b.jpg"), ("a.jpg", "night/b.jpg"))
    found = read_cvat(root)
    assert found.classes == ["road sign", "cat", "bird"]
    assert dict(found.notes) == {
        "boxes without an outline, left out": 1,
        "shapes of the kind polyline that cover no area, left out": 1,
        "shapes of the kind tag that cover no area, left out": 1,
    }
    written = write_folder(found, tmp_path / "out", Options(test_share=0))
    assert [(one.name, one.images, one.objects) for one in written.classes] == [
        ("road sign", 1, 2),
        ("cat", 1, 1),
        ("bird", 0, 0),
    ]
    data = Folder(str(tmp_path / "out"))
    label = data.read("train", "a").label.numpy()
    expected = np.zeros((8, 12), np.uint8)
    expected[:, :6] = 2
    expected[6, 3:5] = expected[7, 2] = 1  # the runs 1, 3, 2 along the rows of a box of 3 × 2
    assert np.array_equal(label[:, :6], expected[:, :6])
    assert 14 <= (label[:, 6:] == 1).sum() <= 22, "an ellipse of 6 π pixels"
    assert data.classes_present("train")["night/b"] == frozenset()
    write_folder(found, tmp_path / "order", Options(test_share=0, overlap="order"))
    label = Folder(str(tmp_path / "order")).read("train", "a").label
    assert (label[:, :6] == 2).all(), "z_order 1 lies above"


def test_the_subsets_of_a_project(tmp_path: Path) -> None:
    images = (
        image("a.jpg", SHAPES, 'subset="Train" task_id="1"')
        + image("a.jpg", SHAPES, 'subset="Validation"')
        + image("c.jpg", SHAPES, 'subset="Test"')
    )
    root = export(tmp_path / "in", images, ("Train/a.jpg", "Validation/a.jpg", "Test/c.jpg"))
    found = read_cvat(root / "annotations.xml")
    assert [
        (item.split, item.image.parent.name) for item in found.images if isinstance(item.image, Path)
    ] == [
        ("train", "Train"),
        ("train", "Validation"),
        ("test", "Test"),
    ]
    write_folder(found, tmp_path / "out", Options())
    assert Folder(str(tmp_path / "out")).ids("train") == ["Train/a", "Validation/a"]


def test_names_stay_in_the_folder(tmp_path: Path) -> None:
    root = export(tmp_path / "in", image("../../../a.jpg", SHAPES))
    write_folder(read_cvat(root), tmp_path / "out", Options(test_share=0))
    assert Folder(str(tmp_path / "out")).ids("train") == ["a"]
    item = Labelled("../../../b", root / "images/a.jpg", "x")
    with pytest.raises(TissError, match="leads out of the folder"):
        write_folder(Found(["cat"], [item]), tmp_path / "other", Options())


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ("", "no images"),
        (image("a.jpg", '<polygon label="cat" points="0,0;1"/>'), r"image 'a\.jpg': points must be pairs"),
        (image("a.jpg", '<polygon label="cat" points="0,0;1,inf;2,2"/>'), "a point lies"),
        (
            image("a.jpg", '<mask label="cat" rle="1,x" left="0" top="0" width="1" height="1"/>'),
            "the rle of a mask",
        ),
        (image("a.jpg", '<mask label="cat" rle="1" top="0" width="1" height="1"/>'), "points must be"),
        (
            image("a.jpg", '<mask label="cat" rle="9,9" left="0" top="0" width="1" height="1"/>'),
            "do not fill",
        ),
        (image("z.jpg"), r"image 'z\.jpg': its image 'z\.jpg' is not in"),
        (image("a.jpg", SHAPES).replace('"12"', '"13"'), "labels for 13 × 8"),
        ('<track id="0" label="cat"></track>', "tracks of a video"),
        ("<image", "bad XML"),
    ],
)
def test_faults_are_named(tmp_path: Path, images: str, words: str) -> None:
    root = export(tmp_path / "in", images)
    with pytest.raises(TissError, match=words):
        write_folder(read_cvat(root), tmp_path / "out", Options())


def test_deep_nesting_is_harmless(tmp_path: Path) -> None:
    root = export(tmp_path, image("a.jpg", SHAPES + "<a>" * 100_000 + "</a>" * 100_000))
    assert len(read_cvat(root).images[0].objects) == 3


def test_entities_are_refused(tmp_path: Path) -> None:
    root = export(tmp_path, image("a.jpg"))
    text = (root / "annotations.xml").read_text()
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>\n<annotations>'
    (root / "annotations.xml").write_text(text.replace("<annotations>", bomb))
    with pytest.raises(TissError, match="no document type or entities"):
        read_cvat(root)
