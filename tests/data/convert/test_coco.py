import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.samples import write_picture
from tiss.data.convert import Options, read_coco, write_folder
from tiss.data.convert.coco import decode_runs
from tiss.data.folder import Folder
from tiss.errors import TissError


def encode_runs(counts: list[int]) -> str:
    """COCO's text form from its description: differences from the fourth on, five bits a character."""
    text = ""
    for place, count in enumerate(counts):
        value = count - counts[place - 2] if place > 2 else count
        while True:
            low, value = value & 31, value >> 5
            more = value != (-1 if low & 16 else 0)
            text += chr(48 + low + (32 if more else 0))
            if not more:
                break
    return text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 100_000), max_size=30))
def test_compressed_runs(counts: list[int]) -> None:
    assert decode_runs(encode_runs(counts)) == tuple(counts)


def test_known_text() -> None:
    assert decode_runs("061") == (0, 6, 1)
    assert encode_runs([5, 40, 2, 41]) == "5X121"
    for text in ("é", " ", "P"):
        with pytest.raises(TissError, match="run lengths"):
            decode_runs(text)


def document() -> dict[str, Any]:
    square = [2, 1, 8, 1, 8, 5, 2, 5]
    counts = [0, 8, 88]  # the first column
    return {
        "images": [
            {"id": 7, "file_name": "a.jpg", "width": 12, "height": 8},
            {"id": 9, "file_name": "b.jpg", "width": 12, "height": 8},
        ],
        "categories": [{"id": 30, "name": "dog"}, {"id": 4, "name": "cat"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 30, "segmentation": [square]},
            {"id": 2, "image_id": 7, "category_id": 4, "segmentation": {"size": [8, 12], "counts": counts}},
            {"id": 3, "image_id": 7, "category_id": 4, "segmentation": [], "bbox": [0, 0, 3, 3]},
        ],
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_picture(tmp_path / f"photos/{name}.jpg")
    return tmp_path / "labels.json"


def save(source: Path, content: dict[str, Any]) -> Path:
    source.write_text(json.dumps(content))
    return source


def test_polygons_and_runs(source: Path, tmp_path: Path) -> None:
    found = read_coco(save(source, document()), tmp_path / "photos")
    assert found.classes == ["cat", "dog"]
    assert dict(found.notes) == {"boxes without an outline, left out": 1}
    write_folder(found, tmp_path / "out", Options(test_share=0))
    label = Folder(str(tmp_path / "out")).read("train", "a").label.numpy()
    expected = np.zeros((8, 12), np.uint8)
    expected[1:5, 2:8] = 2
    expected[:, 0] = 1
    assert np.array_equal(label, expected)
    assert Folder(str(tmp_path / "out")).classes_present("train") == {"a": {1, 2}, "b": frozenset()}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("annotations", 0, "category_id"), 99, "annotation 1: category 99"),
        (("annotations", 0, "image_id"), 99, "annotations of image 99"),
        (("annotations", 0, "segmentation"), [[1, 2, 3]], "annotation 1: a polygon"),
        (("annotations", 0, "segmentation"), [[1, 2, "x", 3]], "annotation 1: points"),
        (("annotations", 0, "segmentation"), [[1, 2, 1e9, 3]], "annotation 1: a point"),
        (("annotations", 0, "segmentation"), "x", "annotation 1: a segmentation is"),
        (
            ("annotations", 1, "segmentation"),
            {"counts": [1]},
            "annotation 2: a run-length mask needs its size",
        ),
        (("annotations", 1, "segmentation"), {"size": [8, 12], "counts": 3}, "needs its counts"),
        (("images", 0, "file_name"), "../../etc/passwd", "leads out"),
        (("images", 0, "file_name"), "z.jpg", "'z.jpg': not in"),
        (("images", 0, "width"), "12", "'width' must be a whole number"),
        (("images",), 3, "'images' must be a list"),
    ],
)
def test_broken_files_are_named(
    source: Path, tmp_path: Path, path: tuple[Any, ...], value: Any, words: str
) -> None:
    content: Any = document()
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(TissError, match=words) as caught:
        read_coco(save(source, content), tmp_path / "photos")
    assert "\n" not in str(caught.value)


def test_faults_found_while_drawing(source: Path, tmp_path: Path) -> None:
    content = document()
    content["images"][1]["width"] = 13
    content["annotations"][1]["segmentation"]["counts"] = [1, 2]
    found = read_coco(save(source, content), tmp_path / "photos")
    with pytest.raises(TissError, match=r"labels\.json, image 'a\.jpg': .* do not fill .*\(and 1 more\)"):
        write_folder(found, tmp_path / "out", Options())
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out-*"))
