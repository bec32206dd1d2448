"""`frozen`: which pixels take an old class, and for how long the network is frozen."""

import pytest
import torch

from tests.methods.toy import toy_config
from tiss.data.base import Batch
from tiss.engine.progress import Reporter
from tiss.engine.run import open_run
from tiss.engine.session import Session
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


def test_what_a_step_froze_is_released_after_it():
    run = open_run(toy_config("frozen"))
    session = Session.start(run.config, run.scenario[0], reporter=Reporter())
    before = session.model.encoder.patch_embed.proj.weight
    for step in list(run.scenario)[:2]:
        stays, kept = step.index > 0, before.detach().clone()
        session.learn(step)
        assert torch.equal(before, kept) == stays
        assert all(parameter.requires_grad for parameter in session.model.parameters())
