"""The confusion matrix is exact, whatever the batches and processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiss.evaluation.confusion import confusion_matrix, sum_over_processes


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(0, 200), st.integers(0, 2**31))
def test_counts_like_a_loop(classes: int, pixels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prediction = rng.integers(0, classes, pixels)
    label = rng.choice([*range(classes), 255], pixels)
    expected = np.zeros((classes, classes), np.int64)
    for true, guess in zip(label, prediction, strict=True):
        if true != 255:
            expected[true, guess] += 1
    found = confusion_matrix(torch.from_numpy(prediction), torch.from_numpy(label), classes)
    assert found.dtype == torch.int64
    np.testing.assert_array_equal(found.numpy(), expected)


def test_takes_bytes_and_any_shape() -> None:
    label = torch.tensor([[[0, 1], [255, 1]]], dtype=torch.uint8)
    assert confusion_matrix(torch.ones_like(label), label, 2).tolist() == [[0, 1], [0, 2]]


@pytest.mark.parametrize(
    ("prediction", "label", "message"),
    [([0], [3], "label 3"), ([3], [0], "prediction 3"), ([0, 0], [0], "differ in shape")],
)
def test_impossible_numbers_are_refused(prediction: list[int], label: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        confusion_matrix(torch.tensor(prediction), torch.tensor(label), 3)


def test_one_process_keeps_its_matrix() -> None:
    matrix = torch.arange(4).reshape(2, 2)
    assert torch.equal(sum_over_processes(matrix), matrix)


def _add(rank: int, rendezvous: str, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    large = 2**53 + 1  # a float64 cannot hold it
    total = sum_over_processes(torch.tensor([[large, rank], [0, 1]]))
    torch.save(total, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_add_exactly(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_add, (str(tmp_path) + "/meet", str(tmp_path)), nprocs=2)
    for rank in range(2):
        total = torch.load(f"{tmp_path}/{rank}.pt")
        assert total.tolist() == [[2**54 + 2, 1], [0, 2]]
