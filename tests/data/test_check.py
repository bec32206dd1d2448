from __future__ import annotations

import pytest
import torch

from tiss.data.check import illegal_labels


@pytest.mark.parametrize("classes", [1, 20, 253])
def test_legal_are_zero_to_the_classes_and_255(classes: int) -> None:
    every = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    assert illegal_labels(every, classes) == list(range(classes + 1, 255))
    for value in range(256):
        found = illegal_labels(torch.tensor([[0, value], [255, 1]], dtype=torch.uint8), classes)
        assert found == ([] if value <= classes or value == 255 else [value])
