from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import write_mask, write_picture
from tiss.data.cityscapes import LABEL_IDS, POLYGONS, TRAIN_IDS, Cityscapes
from tiss.errors import TissError

ID = "ulm_000001_000019"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TISS_CACHE", str(tmp_path / "cache"))
    write_picture(tmp_path / f"leftImg8bit/train/ulm/{ID}_leftImg8bit.png")
    (tmp_path / "gtFine/train/ulm").mkdir(parents=True)
    return tmp_path


def label_file(root: Path, ending: str) -> Path:
    return root / f"gtFine/train/ulm/{ID}{ending}"


def write_polygons(root: Path, objects: list[dict[str, object]]) -> None:
    document = {"imgWidth": 12, "imgHeight": 8, "objects": objects}
    label_file(root, POLYGONS).write_text(json.dumps(document))


def test_train_ids_move_up_by_one(root: Path) -> None:
    write_mask(label_file(root, TRAIN_IDS), [0, 18, 255])
    dataset = Cityscapes(str(root))
    assert not dataset.has_background
    assert dataset.ids("train") == [ID]
    assert dataset.read("train", ID).label.unique().tolist() == [1, 19, 255]
    assert dataset.classes_present("train") == {ID: {1, 19}}
    write_mask(label_file(root, TRAIN_IDS), [0, 19])
    with pytest.raises(TissError, match="label 19 "):
        dataset.read("train", ID)


def test_label_ids_go_through_the_table(root: Path) -> None:
    write_mask(label_file(root, LABEL_IDS), [0, 7, 9, 33])
    assert Cityscapes(str(root)).read("train", ID).label.unique().tolist() == [1, 19, 255]


def test_polygons_in_file_order(root: Path) -> None:
    whole = [[0, 0], [12, 0], [12, 8], [0, 8]]
    left = [[0, 0], [3, 0], [3, 8], [0, 8]]
    write_polygons(
        root,
        [
            {"label": "road", "polygon": whole},
            {"label": "cargroup", "polygon": left},
            {"label": "license plate", "polygon": left},
            {"label": "dynamic", "polygon": [[8, 0], [12, 0], [12, 8], [8, 8]]},
            {"label": "sky", "polygon": whole, "deleted": 1},
        ],
    )
    label = Cityscapes(str(root)).read("train", ID).label.numpy()
    assert np.unique(label).tolist() == [1, 14, 255]
    assert label[4, 1] == 14
    assert label[4, 6] == 1
    assert label[4, 10] == 255


def test_broken_polygons_are_named(root: Path) -> None:
    for objects in ([{"label": "road"}], [{"label": "road", "polygon": [[1]]}], [3]):
        write_polygons(root, objects)  # type: ignore[arg-type]
        with pytest.raises(TissError, match=r"_gtFine_polygons\.json: not a Cityscapes"):
            Cityscapes(str(root)).read("train", ID)


def test_faults(root: Path) -> None:
    with pytest.raises(TissError, match=r"its mask .*labelTrainIds"):
        Cityscapes(str(root)).classes_present("train")
    with pytest.raises(TissError, match="val: the folder is missing"):
        Cityscapes(str(root)).ids("test")
    with pytest.raises(TissError, match="needs leftImg8bit and gtFine"):
        Cityscapes(str(root / "gtFine"))


def test_order_of_the_last_classes() -> None:
    assert Cityscapes.classes[13:] == ("car", "truck", "bus", "train", "motorcycle", "bicycle")
    assert len(Cityscapes.classes) == 19
