"""YOLO's folders as Ultralytics, CVAT and Roboflow write them."""

from pathlib import Path

import pytest

from tests.data.samples import write_picture
from tiss.data.convert import Options, read_yolo, write_folder
from tiss.data.folder import Folder
from tiss.errors import TissError

LEFT_HALF = "0 0 0 0.5 0 0.5 1 0 1\n"


def place(root: Path, files: dict[str, str | None]) -> Path:
    """Text files; None stands for an image."""
    for name, content in files.items():
        if content is None:
            write_picture(root / name)
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
    return root


ULTRALYTICS = {
    "coco8-seg.yaml": "path: /home/me/datasets/coco8-seg # root\ntrain: images/train\nval: images/val\ntest:\n"
    "names:\n  0: cat\n  2: dog\n",
    "images/train/a.jpg": None,
    "images/train/sub/b.jpg": None,
    "images/val/a.jpg": None,
    "labels/train/a.txt": LEFT_HALF + "\n2 0.5 0 1 0 1 0.5 0.5 0.5\r\n2 0.5 0.5 0.2 0.2\n",
    "labels/val/a.txt": "",
}
ROBOFLOW = {
    "data.yaml": "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\nnc: 2\nnames: ['cat', 'dog']\n"
    "roboflow:\n  license: CC BY 4.0\n",
    "README.dataset.txt": "# helmets\n",
    "train/images/x_jpg.rf.0f1e.jpg": None,
    "train/labels/x_jpg.rf.0f1e.txt": LEFT_HALF,
    "valid/images/y.jpg": None,
    "valid/labels/y.txt": LEFT_HALF,
    "test/images/z.jpg": None,
    "test/labels/z.txt": "1 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75",
}
CVAT = {
    "data.yaml": "path: ./\ntrain: train.txt\nnames:\n  0: cat\n",
    "train.txt": "images/train/a.jpg\n\nimages/train/gone.jpg\n",
    "images/train/a.jpg": None,
    "labels/train/a.txt": LEFT_HALF,
}


def test_ultralytics(tmp_path: Path) -> None:
    found = read_yolo(place(tmp_path / "in", ULTRALYTICS))
    assert found.classes == ["cat", "dog"]
    assert dict(found.notes) == {
        "boxes without an outline, left out": 1,
        "images without a label file, taken as background": 1,
    }
    written = write_folder(found, tmp_path / "out", Options())
    assert (written.train, written.test) == (2, 1)
    data = Folder(str(tmp_path / "out"))
    assert data.ids("train") == ["a", "sub/b"] and data.ids("test") == ["a"]
    label = data.read("train", "a").label.numpy()
    assert (label[:, :6] == 1).all() and (label[:4, 6:] == 2).all() and (label[4:, 6:] == 0).all()
    assert data.classes_present("test")["a"] == frozenset()


def test_roboflow(tmp_path: Path) -> None:
    written = write_folder(read_yolo(place(tmp_path / "in", ROBOFLOW)), tmp_path / "out", Options())
    assert (written.train, written.test) == (2, 1), "there is a test, so valid is for training"
    data = Folder(str(tmp_path / "out"))
    assert data.ids("test") == ["z"]
    assert (data.read("test", "z").label.numpy()[2:6, 3:9] == 2).all()


def test_roboflow_names_a_test_that_is_not_there(tmp_path: Path) -> None:
    files = {name: content for name, content in ROBOFLOW.items() if not name.startswith("test/")}
    found = read_yolo(place(tmp_path, files))
    assert [(item.id, item.split) for item in found.images] == [("x_jpg.rf.0f1e", "train"), ("y", "test")]


def test_lists_of_images(tmp_path: Path) -> None:
    found = read_yolo(place(tmp_path / "in", CVAT) / "data.yaml")
    assert [(item.id, item.split) for item in found.images] == [("a", "train")]


def test_parts_and_holes_on_one_line(tmp_path: Path) -> None:
    """Ultralytics joins the parts of an object by a line there and back; so do holes."""
    outer, hole = (
        [(0, 0), (0.5, 0), (0.5, 1), (0, 1), (0, 0)],
        [(0.25, 0.25), (0.25, 0.75), (0.4, 0.75), (0.4, 0.25)],
    )
    part = [(0.75, 0), (1, 0), (1, 0.5), (0.75, 0.5)]
    corners = [*outer, *hole, hole[0], outer[0], *part, part[0], outer[0]]
    line = "0 " + " ".join(f"{x} {y}" for x, y in corners)
    files = ULTRALYTICS | {"labels/train/a.txt": line}
    write_folder(read_yolo(place(tmp_path / "in", files)), tmp_path / "out", Options())
    label = Folder(str(tmp_path / "out")).read("train", "a").label.numpy()
    assert (label == 1).sum() == 6 * 8 - 2 * 4 + 3 * 4
    assert label[4, 3] == 0 and label[0, 3] == 1 and label[1, 10] == 1


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"labels/train/a.txt": "7 0 0 1 0 1 1"}, r"a\.txt, line 1: class '7' is not in data\.yaml's names"),
        ({"labels/train/a.txt": "cat 0 0 1 0 1 1"}, "class 'cat'"),
        ({"labels/train/a.txt": "0 0 0 1 0 1 1 0.9"}, "line 1: a polygon is a list"),
        ({"labels/train/a.txt": "0 0 0 x 0 1 1"}, "line 1: points must be"),
        ({"labels/train/a.txt": "0 0 0 nan 0 1 1"}, "line 1: a point lies"),
        ({"labels/train/a.txt": "0 0.5 0.5 1 1"}, "no polygons"),
        ({"coco8-seg.yaml": "train: images/train"}, "no class names"),
        ({"coco8-seg.yaml": "train: images/train\nnames: {cat: 0}"}, "no class names"),
        ({"coco8-seg.yaml": "train: elsewhere\nnames: [cat]"}, "no polygons"),
        ({"other.yaml": ""}, "several YAML files"),
    ],
)
def test_faults_are_named(tmp_path: Path, files: dict[str, str], words: str) -> None:
    with pytest.raises(TissError, match=words):
        read_yolo(place(tmp_path, ULTRALYTICS | files))


def test_an_image_is_not_tested_that_is_trained(tmp_path: Path) -> None:
    files = {
        "data.yaml": "train: images\nval: images\nnames: [cat]\n",
        "images/train.jpg": None,
        "labels/train.txt": LEFT_HALF,
    }
    found = read_yolo(place(tmp_path / "in", files))
    assert dict(found.notes) == {"images that two splits share, taken once": 1}
    assert [(item.id, item.split) for item in found.images] == [("train", "train")]


def test_paths_stay_in_the_folder(tmp_path: Path) -> None:
    write_picture(tmp_path / "secret/a.jpg")
    files = ULTRALYTICS | {"coco8-seg.yaml": f"train: {tmp_path}/secret\nval: ../secret\nnames: [cat]"}
    with pytest.raises(TissError, match="no polygons"):
        read_yolo(place(tmp_path / "in", files))
