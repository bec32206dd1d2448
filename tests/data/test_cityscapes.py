"""Cityscapes, as its makers lay it out."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import write_mask, write_picture
from tiss.data.checks import check_split
from tiss.data.cityscapes import LABEL_IDS, POLYGONS, TRAIN_IDS, Cityscapes, CityscapesDomains
from tiss.errors import TissError
from tiss.scenarios import load_scenario

ID = "ulm_000001_000019"
LABEL = f"gtFine/train/ulm/{ID}"


@pytest.fixture
def city(tmp_path: Path) -> Path:
    write_picture(tmp_path / f"leftImg8bit/train/ulm/{ID}_leftImg8bit.png")
    (tmp_path / "gtFine/train/ulm").mkdir(parents=True)
    return tmp_path


def test_classes_are_the_published_ones() -> None:
    assert Cityscapes.classes[13:] == ("car", "truck", "bus", "train", "motorcycle", "bicycle")
    assert len(Cityscapes.classes) == 19


def test_cityscapes_train_ids_move_up_by_one(city: Path) -> None:
    write_mask(city / f"{LABEL}{TRAIN_IDS}", [0, 18, 255])
    dataset = Cityscapes(str(city))
    assert not dataset.has_background
    assert dataset.ids("train") == [ID]
    assert dataset.read("train", ID).label.unique().tolist() == [1, 19, 255]
    assert dataset.classes_present("train") == {ID: {1, 19}}
    write_mask(city / f"{LABEL}{TRAIN_IDS}", [0, 19])
    with pytest.raises(TissError, match="label 19 "):
        dataset.read("train", ID)


def test_cityscapes_label_ids_go_through_the_table(city: Path) -> None:
    write_mask(city / f"{LABEL}{LABEL_IDS}", [0, 7, 9, 33])
    assert Cityscapes(str(city)).read("train", ID).label.unique().tolist() == [1, 19, 255]
    write_mask(city / f"{LABEL}{LABEL_IDS}", [0, 18, 255])
    with pytest.raises(TissError, match=r"labelIds\.png: label 255 is a train id"):
        Cityscapes(str(city)).read("train", ID)


def test_cityscapes_label_ids_that_are_train_ids_or_interpolated_are_faults(city: Path) -> None:
    def faults(labels: list[int]) -> list[str]:
        write_mask(city / f"{LABEL}{LABEL_IDS}", labels)
        return check_split(Cityscapes(str(city)), "train").faults

    assert faults([7, 21, 23, 26]) == []
    (fault,) = faults([0, 8, 10, 13, 19])
    assert "labelIds.png (and 0 more): no label above 19, so train ids" in fault
    (fault,) = faults([7] * 4 + [13, 20] + [26] * 6)  # from road to car by way of what is between
    assert "resized by interpolation" in fault
    assert "1 of 1 masks" in fault


def write_polygons(city: Path, objects: list[object]) -> None:
    document = {"imgWidth": 12, "imgHeight": 8, "objects": objects}
    (city / f"{LABEL}{POLYGONS}").write_text(json.dumps(document))


def stripe(label: str, left: int, right: int) -> dict[str, object]:
    return {"label": label, "polygon": [[left, 0], [right, 0], [right, 8], [left, 8]]}


def test_cityscapes_polygons_in_file_order(city: Path) -> None:
    spans = {
        "road": (0, 12),
        "cargroup": (0, 3),
        "license plate": (0, 3),
        "dynamic": (8, 12),
        "polegroup": (4, 5),
    }
    objects = [stripe(name, *span) for name, span in spans.items()]
    write_polygons(city, [*objects, stripe("sky", 0, 12) | {"deleted": 1}])
    label = Cityscapes(str(city)).read("train", ID).label.numpy()
    assert np.unique(label).tolist() == [1, 14, 255]
    assert label[4, [1, 6, 10, 4]].tolist() == [14, 1, 255, 255]


@pytest.mark.parametrize("item", [{"label": "road"}, {"label": "road", "polygon": [[1]]}, 3])
def test_broken_cityscapes_polygons_are_named(city: Path, item: object) -> None:
    write_polygons(city, [item])
    with pytest.raises(TissError, match=r"_gtFine_polygons\.json: not a Cityscapes"):
        Cityscapes(str(city)).read("train", ID)


def test_cityscapes_faults(city: Path) -> None:
    with pytest.raises(TissError, match=r"its mask .*labelTrainIds"):
        Cityscapes(str(city)).classes_present("train")
    with pytest.raises(TissError, match="val: the folder is missing"):
        Cityscapes(str(city)).ids("test")
    with pytest.raises(TissError, match="no cityscapes/leftImg8bit"):
        Cityscapes(str(city / "gtFine"))


def test_cityscapes_by_city_has_a_fixed_fifth_of_each_city_for_the_test(tmp_path: Path) -> None:
    for city in CityscapesDomains.domains:
        split = "val" if city in ("frankfurt", "lindau", "munster") else "train"
        for number in range(6):
            id = f"{city}_{number:06d}_000019"
            write_picture(tmp_path / f"leftImg8bit/{split}/{city}/{id}_leftImg8bit.png")
            write_mask(tmp_path / f"gtFine/{split}/{city}/{id}{TRAIN_IDS}", [0, 18])
    data = CityscapesDomains(str(tmp_path))
    assert len(data.ids("train")) == 21 * 5
    assert data.ids("test") == [f"{city}_000004_000019" for city in sorted(data.domains)]
    scenario = load_scenario(data, task="11-5", setup="domains")
    assert [len(step.train) for step in scenario] == [55, 25, 25]
    assert [len(step.test) for step in scenario] == [11, 16, 21]
    assert [len(load_scenario(data, task=task, setup="domains")) for task in ("11-1", "1-1")] == [11, 21]
