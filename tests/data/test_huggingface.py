import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.samples import columns
from tiss.data.base import DATASETS
from tiss.data.checks import check_split, pixel_counts
from tiss.data.huggingface import HuggingFace, names_by_value
from tiss.errors import TissError
from tiss.scenarios import load_scenario

datasets = pytest.importorskip("datasets")

MASKS = ([0, 1], [0, 2], [1, 2], [2, 3])


def table(
    masks: tuple[list[int], ...], names: tuple[str, str] = ("image", "annotation"), width: int = 12
) -> Any:
    features = datasets.Features(
        {names[0]: datasets.Image(), names[1]: datasets.Image(), "note": datasets.Value("string")}
    )
    rows = {
        names[0]: [Image.fromarray(np.full((8, 12, 3), number, np.uint8)) for number in range(len(masks))],
        names[1]: [Image.fromarray(columns(labels, width)) for labels in masks],
        "note": [str(labels) for labels in masks],
    }
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets.disable_progress_bars()
    path = tmp_path / "table"
    datasets.DatasetDict({"train": table(MASKS), "validation": table(MASKS[:1])}).save_to_disk(str(path))
    (path / "id2label.json").write_text(json.dumps({"0": "background", "1": "cat", "2": "dog", "3": "void"}))
    return path


def test_reads_a_table_from_disk(root: Path) -> None:
    dataset = HuggingFace(str(root))
    assert DATASETS.get("huggingface") is HuggingFace
    assert dataset.classes == ("cat", "dog")
    assert dataset.has_background
    assert dataset.ids("train") == ["0000000", "0000001", "0000002", "0000003"]
    assert len(dataset.ids("test")) == 1
    sample = dataset.read("train", "0000003")
    assert sample.image.shape == (3, 8, 12)
    assert (sample.image == 3).all()
    assert sample.label.unique().tolist() == [2, 255]
    assert list(dataset.classes_present("train").values()) == [{1}, {2}, {1, 2}, {2}]
    assert dataset.root_path() == root


def test_serves_a_scenario_and_the_commands(root: Path) -> None:
    dataset = HuggingFace(root)
    scenario = load_scenario(dataset=dataset, task="1-1")
    assert [len(ids) for ids in scenario.lists] == [2, 3]
    assert check_split(dataset, "train").faults == []
    assert pixel_counts(dataset, "train")["0000000"] == {0: 48, 1: 48}


def test_index_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    HuggingFace(root).classes_present("train")
    monkeypatch.setattr(HuggingFace, "scan", lambda self, split, item: pytest.fail("read again"))
    assert HuggingFace(root).classes_present("train")["0000000"] == {1}


def test_class_list_and_other_columns(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "other"
    table(([0, 1],), ("img", "seg_map")).save_to_disk(str(path))
    with pytest.raises(TissError, match="class names are missing"):
        HuggingFace(path)
    (path / "classes.txt").write_text("road\ncar\n")
    dataset = HuggingFace(path)
    assert not dataset.has_background
    assert dataset.classes_present("train") == {"0000000": {1, 2}}
    with pytest.raises(TissError, match="no test split, only train"):
        dataset.ids("test")


def test_faults_are_named(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "other"
    datasets.DatasetDict({"train": table(([0, 9],)), "test": table(([0, 1],), width=11)}).save_to_disk(
        str(path)
    )
    (path / "classes.txt").write_text("background\ncat\n")
    dataset = HuggingFace(path)
    with pytest.raises(TissError, match="train row 0, annotation: label 9"):
        dataset.classes_present("train")
    with pytest.raises(TissError, match="test row 0, annotation: 11 × 8, but its image is 12 × 8"):
        dataset.read("test", "0000000")
    with pytest.raises(TissError, match="no id '5'"):
        dataset.read("test", "5")
    features = datasets.Features({"image": datasets.Image()})
    one = {"image": [Image.new("RGB", (12, 8))]}
    datasets.Dataset.from_dict(one, features=features).save_to_disk(str(tmp_path / "one"))
    (tmp_path / "one" / "classes.txt").write_text("cat\n")
    with pytest.raises(TissError, match="needs an image and an annotation column, has image"):
        HuggingFace(tmp_path / "one").ids("train")
    with pytest.raises(TissError, match="does not exist"):
        HuggingFace(str(tmp_path / "cache" / "nothing"))
    with pytest.raises(TissError, match="needs a folder or a data set's name"):
        HuggingFace(None)


def test_names_by_value() -> None:
    found = names_by_value({"0": "road", "1": "car", "255": "void"}, "x")
    assert found == (("road", "car"), False, frozenset({255}))
    for document in ([], {"a": "b"}, {"0": "background"}, {"0": "a", "2": "b"}, {}):
        with pytest.raises(TissError, match=r"^x: "):
            names_by_value(document, "x")


def test_a_broken_table_is_one_line(root: Path) -> None:
    (root / "train" / "state.json").write_text("{")
    with pytest.raises(TissError, match="cannot be loaded"):
        HuggingFace(root)
