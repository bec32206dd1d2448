from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data.fake import random_data
from tiss.errors import TissError
from tiss.scenarios import load_scenario
from tiss.scenarios.lists import read_lists

IDS = ["a", "b", "c", "d"]


def test_indices_and_ids(tmp_path: Path) -> None:
    np.save(tmp_path / "train-0.npy", np.array([3, 0]))
    (tmp_path / "train-1.txt").write_text("c\nb\n")
    (tmp_path / "train-2.txt").write_text("1\n2\n")
    assert read_lists(tmp_path, 3, IDS[::-1]) == [["a", "d"], ["b", "c"], ["b", "c"]]


def test_scenario_uses_them_and_keeps_the_holdout_out(tmp_path: Path) -> None:
    data = random_data(0)
    for step, part in enumerate((range(12), range(12, 16), range(16, 20))):
        np.save(tmp_path / f"train-{step}.npy", np.array(part))
    scenario = load_scenario(data, task="2-1", lists=tmp_path)
    assert [len(step.train) for step in scenario] == [12, 4, 4]
    held = load_scenario(data, task="2-1", lists=tmp_path, holdout=0.2)
    assert sum(len(step.train) for step in held) == 16


def write(folder: Path, kind: str) -> None:
    if kind == "pickle":
        np.save(folder / "train-0.npy", np.array([{}], dtype=object), allow_pickle=True)
    elif kind == "range":
        np.save(folder / "train-0.npy", np.array([0, 4]))
    elif kind == "floats":
        np.save(folder / "train-0.npy", np.array([0.5]))
    elif kind == "cut":
        np.save(folder / "train-0.npy", np.arange(1000))
        (folder / "train-0.npy").write_bytes((folder / "train-0.npy").read_bytes()[:-100])
    elif kind == "text":
        (folder / "train-0.txt").write_text("a\nzz\n")
    elif kind == "twice":
        (folder / "train-0.txt").write_text("a\na\n")
    elif kind == "empty":
        (folder / "train-0.txt").write_text("")
    elif kind == "more":
        (folder / "train-0.txt").write_text("a")
        (folder / "train-1.txt").write_text("b")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("none", "no train-0.npy or train-0.txt"),
        ("pickle", "not a readable .npy"),
        ("range", "index 4, but the data set has 4"),
        ("floats", "whole numbers"),
        ("cut", "not a readable .npy"),
        ("text", "zz is no training id"),
        ("twice", "a stands in the list twice"),
        ("empty", "the list is empty"),
        ("more", "the task has 1 steps"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, kind: str, said: str) -> None:
    write(tmp_path, kind)
    with pytest.raises(TissError) as caught:
        read_lists(tmp_path, 1, IDS)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(TissError, match="--lists"):
        read_lists(tmp_path / "none", 1, IDS)


@pytest.mark.parametrize("words", ["9" * 5000, "²", "1 " + "0" * 12])
def test_numbers_that_are_none_are_refused_in_one_line(tmp_path: Path, words: str) -> None:
    (tmp_path / "train-0.txt").write_text(words)
    with pytest.raises(TissError, match="no training id"):
        read_lists(tmp_path, 1, ["a", "b"])


def test_an_archive_is_no_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "train-0.npz", a=np.arange(2))
    (tmp_path / "train-0.npz").rename(tmp_path / "train-0.npy")
    with pytest.raises(TissError, match=r"not a readable \.npy"):
        read_lists(tmp_path, 1, ["a", "b"])
