"""Nothing in any batch norm moves over a whole step, whatever puts the model back into training mode."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.methods.toy import toy_config
from tiss.engine.progress import Reporter
from tiss.engine.run import open_run
from tiss.engine.session import Session
from tiss.errors import TissError
from tiss.methods.base import check_pair
from tiss.methods.mib import batch_norms
from tiss.models.model import SegmentationModel


def tensors(model: SegmentationModel) -> list[Tensor]:
    """Weights, biases, running means and variances, and counters of every batch norm."""
    return [tensor.clone() for norm in batch_norms(model) for tensor in norm.state_dict().values()]


def movement(method: str, encoder: str, decoder: str | None = None) -> list[bool]:
    """For steps 0 to 2: whether anything in a batch norm moved."""
    run = open_run(toy_config(method, encoder, decoder))
    session = Session.start(run.config, run.scenario[0], reporter=Reporter())
    model, moved = session.model, []
    for step in run.scenario:
        before = tensors(model)
        assert len(before) >= 5
        session.learn(step)
        session.confusion(step.test)
        model.train()  # what a user or a loop may do between steps
        same = [torch.equal(a, b) for a, b in zip(before, tensors(model), strict=True)]
        assert len(set(same)) == 1, "some batch norms moved and some did not"
        moved.append(not same[0])
        assert all(parameter.requires_grad for parameter in model.parameters())
    return moved


@pytest.mark.parametrize(("encoder", "decoder"), [("resnet_micro", None), ("vit_micro_patch8", "mlp")])
def test_nothing_in_any_batch_norm_moves_after_step_0(encoder: str, decoder: str | None) -> None:
    assert movement("mib+frozenbn", encoder, decoder) == [True, False, False]


def test_without_freezing_they_move() -> None:
    assert movement("mib", "resnet_micro") == [True, True, True]


def test_training_mode_is_put_right_every_time() -> None:
    run = open_run(toy_config("mib+frozenbn", "resnet_micro"))
    session = Session.start(run.config, run.scenario[0], reporter=Reporter())
    session.learn(run.scenario[0])
    session.method.begin(run.scenario[1], session.model, seed=0)
    for _ in range(2):
        session.model.train()
        session.method.train_mode(session.model)
        assert session.model.training
        assert not any(norm.training for norm in batch_norms(session.model))


def test_a_model_without_batch_norm_is_refused() -> None:
    config = toy_config("mib+frozenbn")
    with pytest.raises(TissError, match="no batch norm to freeze"):
        check_pair(config.method, config.model)
