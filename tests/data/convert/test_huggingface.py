"""Tables of Hugging Face's library on disk, as Parquet and as save_to_disk writes them."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import columns, png
from tests.data.test_huggingface import table
from tiss.data.convert import Options, read_huggingface, write_folder
from tiss.data.folder import Folder
from tiss.errors import TissError

datasets = pytest.importorskip("datasets")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    datasets.disable_progress_bars()
    root = tmp_path / "in"
    (root / "data").mkdir(parents=True)
    (root / "id2label.json").write_text(json.dumps({"0": "background", "1": "cat", "2": "dog", "3": "void"}))
    return root


def test_parquet(root: Path, tmp_path: Path) -> None:
    table(([0, 1], [2, 3])).to_parquet(root / "data/train-00000-of-00001.parquet")
    table(([0, 2],)).to_parquet(root / "data/validation-00000-of-00001.parquet")
    written = write_folder(read_huggingface(root), tmp_path / "out", Options())
    assert (written.train, written.test) == (2, 1)
    assert [(one.name, one.pixels, one.objects) for one in written.classes] == [
        ("cat", 48, None),
        ("dog", 96, None),
    ]
    assert written.ignored.pixels == 48
    data = Folder(str(tmp_path / "out"))
    sample = data.read("train", "train-0000001")
    assert sample.label.unique().tolist() == [2, 255]
    assert (sample.image == 1).all()


def test_parquet_of_plain_bytes(root: Path, tmp_path: Path) -> None:
    """Written by pandas or pyarrow, the columns are bytes, or structures of bytes and path."""
    import pyarrow
    import pyarrow.parquet

    image = png(np.full((8, 12, 3), 7, np.uint8))
    rows = {"image": [{"bytes": image, "path": None}], "mask": [png(columns([0, 1]))]}
    pyarrow.parquet.write_table(pyarrow.table(rows), root / "data/train.parquet")
    write_folder(read_huggingface(root), tmp_path / "out", Options(test_share=0))
    label = Folder(str(tmp_path / "out")).read("train", "train-0000000").label.numpy()
    assert np.array_equal(label[0], np.repeat([0, 1], 6))


def test_save_to_disk_without_a_background(root: Path, tmp_path: Path) -> None:
    table(([0, 1], [0, 0], [1, 1])).save_to_disk(str(root))
    (root / "id2label.json").write_text(json.dumps({"0": "road", "1": "car"}))
    found = read_huggingface(root)
    assert {item.split for item in found.images} == {None}, "one split says nothing"
    written = write_folder(found, tmp_path / "out", Options(test_share=0))
    assert [(one.name, one.images) for one in written.classes] == [("road", 2), ("car", 2)]
    with pytest.raises(TissError, match="are in its table"):
        read_huggingface(root, tmp_path)
