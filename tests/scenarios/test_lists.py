from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from tests.data.fake import random_data
from tiss.errors import TissError
from tiss.scenarios import load_scenario
from tiss.scenarios.selection import read_lists

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


def saved(array: object, cut: int = 0) -> bytes:
    """The bytes of a .npy file, without the last `cut` of them."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()[: -cut or None]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no train-0.npy or train-0.txt"),
        ({"train-0.npy": saved(np.array([{}], dtype=object))}, "not a readable .npy"),
        ({"train-0.npy": saved(np.array([0, 4]))}, "index 4, but the data set has 4"),
        ({"train-0.npy": saved(np.array([0.5]))}, "whole numbers"),
        ({"train-0.npy": saved(np.arange(1000), cut=100)}, "not a readable .npy"),
        ({"train-0.npy": b"PK\x03\x04 an archive"}, "not a readable .npy"),
        ({"train-0.txt": b"a\nzz\n"}, "zz is no training id"),
        ({"train-0.txt": b"9" * 5000}, "no training id"),
        ({"train-0.txt": "²".encode()}, "no training id"),
        ({"train-0.txt": b"1 " + b"0" * 12}, "no training id"),
        ({"train-0.txt": b"a\na\n"}, "a is in the list twice"),
        ({"train-0.txt": b""}, "the list is empty"),
        ({"train-0.txt": b"a", "train-1.txt": b"b"}, "the task has 1 steps"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TissError) as caught:
        read_lists(tmp_path, 1, IDS)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(TissError, match="lists"):
        read_lists(tmp_path / "none", 1, IDS)
