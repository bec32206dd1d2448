"""Classes of pixels from small logits against the argmax of all upsampled logits."""

import dataclasses

import pytest
import torch

from tests.losses.cases import CASES
from tiss.losses import upsampled_argmax
from tiss.models.contract import Resolution


@pytest.mark.parametrize("name", CASES)
def test_equals_the_argmax_of_upsampled_logits(name):
    task = CASES[name].make(kind=torch.float64)
    expected = task.to.upsample(task.logits).argmax(1)
    for fused in ("auto", "off"):
        found = upsampled_argmax(task.logits, dataclasses.replace(task.to, fused=fused))
        assert found.dtype == torch.uint8
        assert torch.equal(found.long(), expected)


def test_small_chunks(monkeypatch):
    monkeypatch.setattr("tiss.losses.argmax.CHUNK_ELEMENTS", 1)
    task = CASES["odd size"].make(kind=torch.float64)
    assert torch.equal(upsampled_argmax(task.logits, task.to).long(), task.to.upsample(task.logits).argmax(1))


def test_among_equals_the_lowest_channel():
    logits = torch.zeros(1, 4, 2, 2)
    logits[:, 2:] = 1
    assert (upsampled_argmax(logits, Resolution.of(8, 8)) == 2).all()


def test_more_than_256_channels():
    logits = torch.zeros(1, 300, 1, 1)
    logits[0, 299] = 1
    found = upsampled_argmax(logits, Resolution.of(2, 2))
    assert found.dtype == torch.int64
    assert (found == 299).all()
