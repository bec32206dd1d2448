"""Interpolation matrices against F.interpolate; classes of pixels against the argmax of upsampled logits."""

import dataclasses

import pytest
import torch

from tests.losses.cases import CASES
from tests.losses.references import bilinear
from tiss.losses import upsampled_argmax
from tiss.losses.upsampling import Rows
from tiss.models import Resolution


@pytest.mark.parametrize(
    ("tokens", "size", "padded"),
    [((2, 3), (7, 11), (8, 12)), ((32, 28), (500, 448), (512, 448)), ((1, 5), (9, 3), (9, 3))],
)
def test_the_same_as_interpolate(tokens, size, padded):
    to = Resolution(size, padded)
    logits = torch.randn(1, 2, *tokens, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    both = Rows(logits, to, budget=1)
    found = both.rows @ logits @ both.columns.t()
    torch.testing.assert_close(found, to.upsample(logits), rtol=0, atol=1e-12)
    if size[0] < 100:
        expected = torch.from_numpy(bilinear(logits.numpy(), *padded))[..., : size[0], : size[1]]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_argmax_of_upsampled_logits(name):
    task = CASES[name].make(kind=torch.float64)
    expected = task.to.upsample(task.logits).argmax(1)
    for fused in ("auto", "off"):
        found = upsampled_argmax(task.logits, dataclasses.replace(task.to, fused=fused))
        assert found.dtype == torch.uint8
        assert torch.equal(found.long(), expected)


def test_small_chunks(monkeypatch):
    monkeypatch.setattr("tiss.losses.upsampling.CHUNK_ELEMENTS", 1)
    task = CASES["odd size"].make(kind=torch.float64)
    assert torch.equal(upsampled_argmax(task.logits, task.to).long(), task.to.upsample(task.logits).argmax(1))


def test_among_equals_the_lowest_channel():
    logits = torch.zeros(1, 4, 2, 2)
    logits[:, 2:] = 1
    assert (upsampled_argmax(logits, Resolution.of(8, 8)) == 2).all()


@pytest.mark.parametrize(("channels", "kind"), [(256, torch.uint8), (300, torch.int64)])
def test_bytes_hold_256_channels(channels, kind):
    logits = torch.zeros(1, channels, 1, 1)
    logits[0, -1] = 1
    found = upsampled_argmax(logits, Resolution.of(2, 2))
    assert found.dtype == kind
    assert (found == channels - 1).all()
