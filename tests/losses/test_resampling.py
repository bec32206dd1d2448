"""Interpolation matrices against F.interpolate."""

import pytest
import torch

from tests.losses.references import bilinear
from tiss.losses.resampling import row_and_column_matrices
from tiss.models.contract import Resolution


@pytest.mark.parametrize(
    ("tokens", "size", "padded"),
    [((2, 3), (7, 11), (8, 12)), ((32, 28), (500, 448), (512, 448)), ((1, 5), (9, 3), (9, 3))],
)
def test_the_same_as_interpolate(tokens, size, padded):
    to = Resolution(size, padded)
    logits = torch.randn(1, 2, *tokens, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows, columns = row_and_column_matrices(logits, to)
    found = rows @ logits @ columns.t()
    torch.testing.assert_close(found, to.upsample(logits), rtol=0, atol=1e-12)
    if size[0] < 100:
        expected = torch.from_numpy(bilinear(logits.numpy(), *padded))[..., : size[0], : size[1]]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
