"""Label Studio's JSON, with what real exports have: percent, several annotators, hashes before names, other results."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.samples import png, write_picture
from tiss.data.convert import Options, read_labelstudio, write_folder
from tiss.data.convert.labelstudio import Brush
from tiss.data.folder import Folder
from tiss.errors import TissError

LENGTHS = (3, 4, 8, 16)


def encode_brush(alpha: np.ndarray, longest: int = 1 << 16) -> list[int]:
    """rle-pack's stream from its description: repeated words and single ones, RGBA."""
    words = np.repeat(alpha.reshape(-1), 4).tolist()
    bits = f"{len(words):032b}{7:05b}" + "".join(f"{length - 1:04b}" for length in LENGTHS)

    def block(repeated: int, count: int, values: list[int]) -> str:
        kind = next(kind for kind, length in enumerate(LENGTHS) if count <= 1 << length)
        return f"{repeated}{kind:02b}{count - 1:0{LENGTHS[kind]}b}" + "".join(
            f"{value:08b}" for value in values
        )

    at, single = 0, []
    while at < len(words):
        end = at
        while end < len(words) and words[end] == words[at] and end - at < longest:
            end += 1
        if end - at == 1:
            single.append(words[at])
        else:
            bits += block(0, len(single), single) if single else ""
            bits += block(1, end - at, [words[at]])
            single = []
        at = end
    bits += block(0, len(single), single) if single else ""
    bits += "0" * (-len(bits) % 8)
    return [int(bits[place : place + 8], 2) for place in range(0, len(bits), 8)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0, 255]), min_size=63, max_size=63), st.sampled_from([1, 3, 7, 200, 1 << 16])
)
def test_brush(alpha: list[int], longest: int) -> None:
    values = np.array(alpha, np.uint8).reshape(7, 9)
    assert np.array_equal(Brush(bytes(encode_brush(values, longest))).cover(7, 9).inside, values > 0)


def test_a_pixel_of_a_brush_is_inside_if_half_as_opaque_as_any() -> None:
    values = np.array([[0, 49, 50, 100]], np.uint8)
    assert Brush(bytes(encode_brush(values))).cover(1, 4).inside.tolist() == [[False, False, True, True]]


def test_real_head_of_a_brush() -> None:
    """The first bytes of the published data set alkzar90/cell_benchmark, of an image of 3332 × 2527 pixels."""
    head = bytes([2, 1, 233, 240, 57, 27, 255, 255, 255])
    with pytest.raises(TissError, match="cut off"):
        Brush(head).cover(2527, 3332)
    with pytest.raises(TissError, match="8,419,964 pixels on 9 × 7"):
        Brush(head).cover(7, 9)
    with pytest.raises(TissError, match="not the run lengths"):
        Brush(b"\0\0").cover(7, 9)


def region(kind: str, label: str, **value: Any) -> dict[str, Any]:
    labels = {f"{kind}labels": [label]} if label else {}
    return {
        "id": f"{kind}{label}",
        "type": f"{kind}labels",
        "from_name": "label",
        "to_name": "image",
        "original_width": 12,
        "original_height": 8,
        "image_rotation": 0,
        "value": value | labels,
    }


def annotation(*results: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": 1, "was_cancelled": False, "ground_truth": False, "result": list(results)} | more


def task(image: str, *annotations: dict[str, Any], number: int = 1) -> dict[str, Any]:
    return {"id": number, "data": {"image": image}, "annotations": list(annotations), "predictions": []}


LEFT_HALF = region("polygon", "dog", points=[[0, 0], [50, 0], [50, 100], [0, 100]], closed=True)


@pytest.fixture
def save(tmp_path: Path) -> Any:
    for name in ("a", "b c", "sub/d"):
        write_picture(tmp_path / f"photos/{name}.jpg")

    def save(*tasks: Any) -> Path:
        (tmp_path / "export.json").write_text(json.dumps(tasks))
        return tmp_path / "export.json"

    return save


def test_an_export(save: Any, tmp_path: Path) -> None:
    painted = np.zeros((8, 12), np.uint8)
    painted[6:, 10:] = 255
    painted[3, 3] = 255
    stamp = png(np.dstack([np.zeros((8, 12, 3), np.uint8), painted]))
    url = "data:image/png;base64," + base64.b64encode(stamp).decode()
    objects = [
        LEFT_HALF,
        region("brush", "cat", format="rle", rle=encode_brush(painted)),
        region("rectangle", "cat", x=0, y=0, width=50, height=50, rotation=0),
        {"id": "c", "type": "choices", "value": {"choices": ["sunny"]}},
        {"type": "relation", "from_id": "a", "to_id": "b", "direction": "right"},
    ]
    round_one = region("ellipse", "ball", x=50, y=50, radiusX=25, radiusY=37.5, rotation=0)
    pixels = region("bitmask", "cat", imageDataURL=url)
    source = save(
        task("/data/upload/3/0a1b2c3d-a.jpg", annotation(*objects)),
        task("/data/local-files/?d=photos/b%20c.jpg", annotation(round_one, pixels)),
        task("https://example.com/x/sub/d.jpg?X-Amz-Signature=1.png", annotation(), number=3),
        task("s3://bucket/e.jpg", annotation(was_cancelled=True), number=4),
        task("s3://bucket/f.jpg", number=5),
    )
    found = read_labelstudio(source, tmp_path / "photos")
    assert found.classes == ["ball", "cat", "dog"]
    assert dict(found.notes) == {
        "boxes without an outline, left out": 1,
        "results of the kind choices, left out": 1,
        "tasks that nobody annotated, left out": 2,
    }
    write_folder(found, tmp_path / "out", Options(test_share=0))
    data = Folder(str(tmp_path / "out"))
    assert data.ids("train") == ["a", "b c", "sub/d"]
    label = data.read("train", "a").label.numpy()
    assert label[3, 3] == 2 and (label[6:, 10:] == 2).all()
    assert (label == 3).sum() == 6 * 8 - 1
    ball = data.read("train", "b c").label.numpy()
    assert ball[4, 4] == 1 and ball[3, 3] == 2 and 20 < (ball == 1).sum() < 32
    assert data.classes_present("train")["sub/d"] == frozenset()


def test_of_several_annotators_one_is_read(save: Any, tmp_path: Path) -> None:
    def by(label: str, time: str, **more: Any) -> dict[str, Any]:
        shape = region("polygon", label, points=[[0, 0], [9, 0], [9, 90]])
        return annotation(shape, updated_at=time, completed_by=7, **more)

    early, late = by("early", "2021-03-09T22:16:08.728353Z"), by("late", "2021-03-10T01:00:00.000000Z")
    best = by("best", "2020-01-01T00:00:00.000000Z", ground_truth=True)
    skipped = by("skipped", "2022-01-01T00:00:00.000000Z", was_cancelled=True)
    for all_of_them, label in (
        ((early, late, skipped), "late"),
        ((best, late), "best"),
        ((late, early), "late"),
    ):
        found = read_labelstudio(save(task("a.jpg", *all_of_them)), tmp_path / "photos")
        assert found.classes == [label]
        assert dict(found.notes) == {"annotations by others of the same task, left out": 1}


def test_a_label_of_its_own_tag(save: Any, tmp_path: Path) -> None:
    """With <Polygon> and <Labels>, the label is a second result with the region's id."""
    shape = region("polygon", "", points=[[0, 0], [99, 0], [99, 99]]) | {"id": "r", "type": "polygon"}
    label = {"id": "r", "type": "labels", "value": {"labels": ["dog"]}}
    found = read_labelstudio(save(task("a.jpg", annotation(shape, label))), tmp_path / "photos")
    assert [name for name, _ in found.images[0].objects] == ["dog"]
    found = read_labelstudio(save(task("a.jpg", annotation(shape))), tmp_path / "photos")
    assert found.notes["regions without a label, left out"] == 1


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (LEFT_HALF | {"image_rotation": 90}, "task 1: labelled on an image turned"),
        (LEFT_HALF | {"original_width": "12"}, "task 1: 'original_width' must be"),
        (region("brush", "x", rle=[1, 300]), "task 1: the rle of a brush"),
        (region("brush", "x", rle="AAAA"), "not the run lengths"),
        (region("ellipse", "x", x=1, y=1, radiusX=3), "task 1: points must be"),
        (region("bitmask", "x", imageDataURL="data:,?"), "task 1: broken base64"),
        (LEFT_HALF | {"value": []}, "task 1: expected names"),
        (LEFT_HALF | {"original_width": 24}, "labels for 24 × 8"),
    ],
)
def test_faults_are_named(save: Any, tmp_path: Path, result: dict[str, Any], words: str) -> None:
    with pytest.raises(TissError, match=words):
        write_folder(
            read_labelstudio(save(task("a.jpg", annotation(result))), tmp_path / "photos"),
            tmp_path / "out",
            Options(),
        )


def test_other_exports(save: Any, tmp_path: Path) -> None:
    with pytest.raises(TissError, match="not JSON-MIN"):
        read_labelstudio(save({"image": "a.jpg", "label": [], "id": 1}))
    with pytest.raises(TissError, match="export it from Label Studio as JSON"):
        read_labelstudio(save("x"))
    with pytest.raises(TissError, match="names no image"):
        read_labelstudio(save(task("text", annotation())))
    with pytest.raises(TissError, match=r"task 1: its image 'z\.jpg' is not in .*photos"):
        read_labelstudio(save(task("../../z.jpg", annotation())), tmp_path / "photos")
