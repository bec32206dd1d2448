from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.data.samples import make_folder
from tiss.data.folder import Folder
from tiss.data.shapes import Shapes
from tiss.data.stats import count_classes, pixel_counts, plot_counts
from tiss.errors import TissError


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setenv("TISS_CACHE", str(tmp_path / "cache"))
    return Folder(str(make_folder(tmp_path / "data")))


def test_counts(dataset: Folder) -> None:
    rows = {row.name: row for row in count_classes(dataset)}
    assert list(rows) == ["background", "cat", "dog", "ignored"]
    assert rows["cat"].pixels == {"train": 48 + 32, "test": 32}
    assert rows["cat"].images == {"train": 2, "test": 1}
    assert rows["ignored"].label == 255
    assert rows["ignored"].pixels == {"train": 32, "test": 0}


def test_data_without_files() -> None:
    dataset = Shapes(None)
    counts = pixel_counts(dataset, "test")
    present = dataset.classes_present("test")
    assert {id: set(values) - {0, 255} for id, values in counts.items()} == present


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot(dataset: Folder, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plot.{suffix}"
    plot_counts(
        count_classes(dataset), ((1,), (2,)), {"overlapped": [2, 2], "disjoint": [1, 2]}, "mine", path
    )
    if suffix == "png":
        assert min(Image.open(path).size) > 300
    else:
        assert "<svg" in path.read_text()


def test_plot_of_another_kind_is_refused(dataset: Folder, tmp_path: Path) -> None:
    with pytest.raises(TissError, match=r"plot .*must end in \.png"):
        plot_counts(count_classes(dataset), ((1, 2),), {}, "mine", tmp_path / "plot.exe")
