from pathlib import Path

import pytest

from tests.data.samples import make_voc
from tiss.data.benchmarks import VOC
from tiss.data.classes import read_table
from tiss.scenarios import load_scenario, published
from tiss.scenarios.published import compare_lists, compare_task, find_lists, list_hash, published_tasks

TRAIN = {"a": [1, 2], "b": [16], "c": [1, 17], "d": [20, 255], "e": [5, 16]}


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VOC:
    monkeypatch.setenv("TISS_CACHE", str(tmp_path / "cache"))
    return VOC(str(make_voc(tmp_path / "data", TRAIN, {"t": [1]})))


def rows(lists: dict[int, list[str]], hashed: bool = True) -> list[dict[str, str]]:
    about = {"task": "15-5", "setup": "overlapped"}
    figures = [(str(step), str(len(ids)), list_hash(ids) if hashed else "") for step, ids in lists.items()]
    return [about | dict(zip(("step", "images", published.HASH), row, strict=True)) for row in figures]


def compare(
    dataset: VOC, folder: Path | None = None, setup: str = "overlapped"
) -> list[published.Comparison]:
    pixels = {id: entry.pixels for id, entry in dataset.entries("train").items()}
    return compare_task(pixels, load_scenario(dataset=dataset, task="15-5", setup=setup), folder)


def pretend(monkeypatch: pytest.MonkeyPatch, table: list[dict[str, str]]) -> None:
    monkeypatch.setattr(published, "read_table", lambda name: table)


def test_same_lists(dataset: VOC, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, rows({0: ["a", "c", "e"], 1: ["b", "c", "d", "e"]}))
    assert [row.same for row in compare(dataset)] == [True, True]


def test_a_difference_is_explained_by_the_lists(
    dataset: VOC, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, rows({0: ["a", "c"], 1: ["a", "x"]}))
    assert [row.same for row in compare(dataset)] == [False, False]
    assert all("set lists" in row.explanation[0] for row in compare(dataset))
    (tmp_path / "15-5").mkdir()
    (tmp_path / "15-5" / "train-0.txt").write_text("JPEGImages/a.jpg\nc\n")
    (tmp_path / "15-5" / "train-1.txt").write_text("a\nx\n")
    first, second = compare(dataset, find_lists(tmp_path, "15-5", "overlapped"))
    assert first.explanation == ["e is too many: its mask holds bottle (48 pixels)"]
    assert second.explanation[:3] == [
        "a is missing: its mask holds no class of this step, only aeroplane (48 pixels), bicycle (48 pixels)",
        "x is missing: the training list lacks it",
        "b is too many: its mask holds pottedplant (96 pixels)",
    ]
    assert len(second.explanation) == 6


def test_counts_without_hashes(dataset: VOC, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, rows({0: ["1", "2", "3"], 1: ["4"]}, hashed=False))
    assert [row.same for row in compare(dataset)] == [True, False]


def test_lists_that_masks_cannot_give_are_not_compared(dataset: VOC, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, [row | {"made_from": "lists"} for row in rows({0: ["a"], 1: ["b"]})])
    assert [row.same for row in compare(dataset)] == [None, None]


def test_a_later_class_is_the_reason_in_disjoint(
    dataset: VOC, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, [row | {"setup": "disjoint"} for row in rows({0: ["a", "c"]})])
    (tmp_path / "train-0.txt").write_text("a\nc\n")
    row = compare(dataset, tmp_path, "disjoint")[0]
    assert row.explanation[0] == "c is missing: its mask holds a class of a later step: sheep (48 pixels)"


def test_whole_lists() -> None:
    (line,) = compare_lists("voc", {"train": ["a"]})
    assert line == "train: 1 ids in the list, published are 10582"
    (line,) = compare_lists("voc", {"test": [str(n) for n in range(1449)]})
    assert "but other ones" in line
    assert compare_lists("folder", {"train": ["a"]}) == []


def test_published_tables() -> None:
    tasks = published_tasks("voc")
    assert ("15-1", "disjoint") in tasks
    assert ("10-1", "overlapped") in tasks
    table = read_table("voc_splits")
    assert sum(bool(row[published.HASH]) for row in table) == 20
    counts = [int(row["images"]) for row in table if row["task"] == "10-1"]
    assert counts == [6139, 528, 1177, 444, 482, 3898, 487, 299, 491, 500, 548]
    assert ("100-50", "disjoint") in published_tasks("ade20k")
    assert published_tasks("folder") == []
