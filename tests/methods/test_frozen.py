"""`frozen`: which pixels take an old class."""

import pytest
import torch

from tiss.data.base import Batch
from tiss.methods.base import build_method, settings_from
from tiss.models import Output, Resolution


@pytest.mark.parametrize("confidence", [0.0, 0.5, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("fused", ["auto", "off"])
def test_background_takes_an_old_class_where_its_sigmoid_is_sure(confidence, fused):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 5, 4, 4, generator=generator) * 2
    label = torch.randint(0, 7, (2, 32, 32), generator=generator) * torch.randint(
        0, 2, (2, 32, 32), generator=generator
    )
    label[0, 0] = 255
    teacher = Output(logits, (), Resolution((32, 32), (32, 32), fused))
    method = build_method(settings_from({"name": "frozen", "confidence": confidence}), steps=2)
    found = method.targets(Batch(torch.zeros(2, 3, 32, 32), label, ["a", "b"]), teacher)
    highest, old = teacher.pixels()[:, 1:].sigmoid().max(dim=1)
    expected = torch.where((label == 0) & (highest > confidence), old + 1, label)
    assert found.dtype == label.dtype
    assert torch.equal(found, expected)
    taken = int((found != label).sum()) / int((label == 0).sum())
    assert taken == 1 - confidence if confidence in (0, 1) else 0 < taken < 1
