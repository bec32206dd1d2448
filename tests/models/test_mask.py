"""The mask transformer: the shared tester (its growth is exact too), attention's share, low precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.tester import check_architecture, make_model, pictures
from tiss.errors import TissError
from tiss.models.mask import MaskHead


def test_architecture(tmp_path: Path) -> None:
    check_architecture("vit_micro_patch8", "mask", tmp_path)


def test_growth_is_exact_in_double_precision() -> None:
    """Copies of the background's token share its attention, so no token moves; nor does any probability."""
    torch.manual_seed(0)
    head = MaskHead(16, (4,)).double()
    for parameter in head.parameters():  # as after training: nothing is at its start any more
        torch.nn.init.normal_(parameter, std=0.5)
    decoded = torch.randn(2, 16, 4, 5, dtype=torch.float64)
    before = head(decoded).softmax(1)
    for new in (3, 1):
        head.grow(new, "background", torch.Generator())
    after = head(decoded).softmax(1)
    torch.testing.assert_close(after[:, 0] + after[:, 4:].sum(1), before[:, 0], atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(after[:, 1:4], before[:, 1:], atol=1e-12, rtol=1e-10)


def test_new_classes_can_part_from_the_background() -> None:
    """Equal rows do not stay equal: their gradients differ as soon as their labels do."""
    model = make_model("vit_micro_patch8", "mask")
    model.grow(["horse"], "background")
    logits = model(pictures(1, 32, 32)).logits
    torch.nn.functional.cross_entropy(logits, torch.full((1, 4, 4), 3)).backward()
    assert not torch.allclose(model.head.rows[1].grad[0], model.head.rows[0].grad[0])


def test_low_precision() -> None:
    model = make_model("vit_micro_patch8", "mask").eval()
    images = pictures(1, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(images).logits
    torch.testing.assert_close(low.float(), model(images).logits, atol=0.1, rtol=0.1)


def test_needs_a_plain_transformer() -> None:
    with pytest.raises(TissError, match="plain vision transformer"):
        make_model("resnet_micro", "mask")
