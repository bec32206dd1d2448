"""What recall draws, how much it counts, and what it makes of the background."""

from __future__ import annotations

import pytest
import torch

from tests.methods.toy import toy_config
from tiss.data.base import IGNORE
from tiss.engine.run import open_run
from tiss.methods.base import build_method
from tiss.methods.recall import BACKGROUND_DRAWS, patch_labels
from tiss.models import Output, Resolution, build_model


@pytest.fixture
def begun():
    """A method at step 1 with statistics of a background and two classes, one of them never seen."""

    def make(**settings):
        run = open_run(toy_config("recall"))
        config, scenario = run.config, run.scenario
        model = build_model(config.model, ["background", *scenario[0].new_classes], 32)
        method = build_method({"name": "recall", **settings}, len(scenario))
        method.begin(scenario[0], model, 0)
        width = model.decoder.channels
        means = torch.arange(3.0)[:, None].expand(3, width)
        roots = 1e-3 * torch.eye(width).expand(3, width, width)
        method.load_state({"means": means, "roots": roots, "counts": torch.tensor([900.0, 100.0, 0.0])})
        method.begin(scenario[1], model, 0)
        return method

    return make


@pytest.mark.parametrize(("balance", "share"), [(1.0, 0.9), (0.5, 0.75), (0.0, 0.5)])
def test_a_class_counts_as_it_was_seen_to_a_power(begun, balance, share):
    method = begun(balance=balance, samples=8)
    features, label, weight = method._draw(torch.device("cpu"))
    assert label.bincount().tolist() == [8 * BACKGROUND_DRAWS, 8]  # the class never seen is not drawn
    assert float(weight.sum()) == pytest.approx(1.0)
    assert float(weight[label == 0].sum()) == pytest.approx(share)
    torch.testing.assert_close(features, label[:, None].float().expand_as(features), atol=0.01, rtol=0)


@pytest.mark.parametrize("hidden", [True, False])
def test_a_drawn_background_may_be_a_new_class(begun, hidden):
    """Making a new class likelier costs nothing where only the background is drawn and new classes may hide in it."""
    method = begun(hidden=hidden)
    method.memory["counts"] = torch.tensor([10.0, 0.0, 0.0])
    bias = method.model.head.biases[-1]
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(float(method.replay_loss(torch.device("cpu")).detach()))
        bias.data += 3.0
    assert (found[1] < found[0]) == hidden


def test_the_background_takes_sure_labels_and_ignores_the_rest(begun):
    method = begun(confidence=0.9)
    old_head = torch.nn.Conv2d(3, 3, 1, bias=False)
    old_head.weight.data = 10 * torch.eye(3)[:, :, None, None]
    features = torch.zeros(1, 3, 2, 2)
    features[0, 2, 0, 0] = 1.0  # surely class 2
    features[0, 0, 0, 1] = 1.0  # surely background; the rest may be anything
    label = torch.tensor([[[0, 0], [0, 3]]])
    output = Output(torch.zeros(1, 4, 2, 2), (features,), Resolution.of(2, 2))
    method.old_head = old_head
    assert method.label_background(label, output).tolist() == [[[2, 0], [IGNORE, 3]]]


def test_a_patch_belongs_to_the_class_that_fills_it():
    label = torch.tensor([[[1, 1, 2, 0], [1, 1, 0, 2], [5, 5, 2, 2], [5, 5, 2, 0]]])
    assert patch_labels(label, (2, 2), range(1, 3), purity=0.6).tolist() == [[[0, -1], [-1, 1]]]
