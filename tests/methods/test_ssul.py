"""SSUL: what stays, to the last bit; which pixels take an old class; where new classes start."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.methods.toy import toy_config
from tiss.data.base import Batch
from tiss.engine.progress import Reporter
from tiss.engine.run import open_run
from tiss.engine.session import Session
from tiss.losses import binary_cross_entropy
from tiss.methods.base import build_method
from tiss.models import Output, Resolution

TRAIN = {
    "adamw": {"recipe": "demo", "weight_decay": 0.5},
    "sgd": {"recipe": "paper", "optimizer": "sgd", "weight_decay": 0.1, "step_lr": 0.1},
}


@pytest.mark.parametrize("optimizer", TRAIN)
@pytest.mark.parametrize("encoder", ["vit_micro_patch8", "resnet_micro"])
def test_a_later_step_changes_no_old_logit(optimizer, encoder):
    """With a decay that would shrink the old rows by a good part."""
    run = open_run(toy_config("ssul", encoder, train=TRAIN[optimizer]))
    session = Session.start(run.config, run.scenario[0], reporter=Reporter())
    images = torch.randint(
        0, 256, (2, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    session.learn(run.scenario[0])
    for step in list(run.scenario)[1:]:
        before = copy.deepcopy(session.model).eval()
        session.learn(step)
        after = session.model.eval()
        known = before.state_dict()
        for name, tensor in after.state_dict().items():
            if name in ("head.rows.0", "head.biases.0"):
                assert torch.equal(tensor[1:], known[name][1:])
                assert not torch.equal(tensor[0], known[name][0]), "the unknown class learned nothing"
            elif name in known:
                assert torch.equal(tensor, known[name]), name
        with torch.no_grad():
            old, new = before(images).logits, after(images).logits
        torch.testing.assert_close(new[:, 1 : step.old], old[:, 1:], rtol=1e-6, atol=1e-6)
        assert not torch.allclose(new[:, 0], old[:, 0])


def test_new_classes_start_from_the_unknown_class():
    run = open_run(toy_config("ssul"))
    session = Session.start(run.config, run.scenario[0], reporter=Reporter())
    session.learn(run.scenario[0])
    session.method.begin(run.scenario[1], session.model, seed=0)
    for parameters in session.model.head.growing():
        assert torch.equal(parameters[-1][0], parameters[0][0])
    trained = {name for name, one in session.model.named_parameters() if one.requires_grad}
    assert trained == {f"head.{part}.{group}" for part in ("rows", "biases") for group in (0, 1)}


@pytest.mark.parametrize("fused", ["auto", "off"])
def test_background_takes_an_old_class_that_is_sure_and_above_unknown(fused):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 5, 4, 4, generator=generator) * 2
    label = torch.randint(0, 7, (2, 32, 32), generator=generator)
    label[torch.rand(label.shape, generator=generator) < 0.5] = 0
    label[0, 0] = 255
    teacher = Output(logits, (), Resolution((32, 32), (32, 32), fused))
    method = build_method("ssul", steps=2)
    method.first, method.held = [], []
    found = method.targets(Batch(torch.zeros(2, 3, 32, 32), label, ["a", "b"]), teacher)
    score, best = teacher.pixels().sigmoid().max(dim=1)
    taken = (label == 0) & (best > 0) & (score > 0.7)
    assert torch.equal(found, torch.where(taken, best, label))
    sure_only = (label == 0) & (teacher.pixels()[:, 1:].sigmoid().amax(1) > 0.7)
    assert 0 < int(taken.sum()) < int(sure_only.sum())  # the unknown class has a say


def test_the_loss_has_all_sigmoids_and_old_classes_get_no_gradient():
    method = build_method("ssul", steps=2)
    method.step = open_run(toy_config("ssul")).scenario[1]
    logits = torch.randn(2, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    label = torch.randint(0, 4, (2, 8, 8))
    to = Resolution.of(8, 8)
    batch = Batch(torch.zeros(2, 3, 8, 8), label, ["a", "b"])
    loss = method.losses(batch, Output(logits, (), to), None)["binary"]
    whole = torch.nn.functional.binary_cross_entropy_with_logits(
        to.upsample(logits),
        torch.nn.functional.one_hot(label, 4).permute(0, 3, 1, 2).double(),
        reduction="sum",
    )
    assert float(loss.detach()) == pytest.approx(float(whole.detach()) / label.numel(), rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, logits)
    (every,) = torch.autograd.grad(binary_cross_entropy(logits, label, to=to, first=0), logits)
    assert not gradient[:, 1:3].any()
    assert torch.equal(gradient[:, [0, 3]], every[:, [0, 3]])
