"""DKD's loss, written out once more in loops over float64, and where its gradients and new rows come from."""

from __future__ import annotations

import math
from unittest.mock import Mock

import pytest
import torch

from tests.losses.references import bilinear
from tests.methods.toy import toy_config
from tiss.data.base import Batch
from tiss.engine.run import open_run
from tiss.methods import dkd
from tiss.methods.base import build_method
from tiss.methods.dkd import reasoning_scores
from tiss.models import Output, build_model


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def binary(score: float, target: float) -> float:
    return -target * math.log(sigmoid(score)) - (1 - target) * math.log(1 - sigmoid(score))


@pytest.fixture
def begun():
    """The method at step 1 (two old classes, one new), its model in float64, and one batch."""

    def make(**settings):
        run = open_run(toy_config({"name": "dkd", **settings}))
        scenario = run.scenario
        model = build_model(run.config.model, ["background", *scenario[0].new_classes], 32).double()
        torch.nn.init.normal_(model.head.biases[0])
        method = build_method(run.config.method, len(scenario))
        method.begin(scenario[0], model, 0)
        old = [tensor.detach().clone() for tensor in model.head.joined()]
        method.begin(scenario[1], model, 0)
        generator = torch.Generator().manual_seed(5)
        images = torch.randint(0, 256, (2, 3, 16, 16), generator=generator, dtype=torch.uint8)
        labels = torch.tensor([0, 3, 255, 1])[torch.randint(0, 4, (2, 16, 16), generator=generator)]
        return method, model, old, Batch(images, labels, ["a", "b"])

    return make


def outputs(model, rows, batch):
    """The student's output, and that of a teacher with other features."""
    output = model(batch.image.double(), needs=("decoder",))
    features = output.features[0].detach() * 1.3 + 0.1
    weights, biases = rows
    logits = torch.einsum("ndhw,kd->nkhw", features, weights) + biases.view(1, -1, 1, 1)
    return output, Output(logits, (features,), output.resolution)


@pytest.mark.parametrize("positive", [None, 4.0])
def test_the_loss_is_the_sum_written_out(begun, positive):
    method, model, old, batch = begun(positive=positive)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=torch.float64)
        output, teacher = outputs(model, old, batch)
        found = {name: float(value) for name, value in method.losses(batch, output, teacher).items()}
    rows, biases = (tensor.detach().numpy() for tensor in model.head.joined())
    features, taught = output.features[0].numpy(), teacher.features[0].numpy()
    pixels, known = (bilinear(one.logits.numpy(), 16, 16) for one in (output, teacher))
    denied = bilinear((features.transpose(0, 2, 3, 1) @ rows[0] + biases[0])[:, None], 16, 16)

    expected = dict.fromkeys(found, 0.0)
    for n in range(2):
        for y in range(16):
            for x in range(16):
                label = int(batch.label[n, y, x])
                weight = positive or 1.0  # VOC's at a later step
                if label != 255:
                    wanted = label == 3
                    expected["cross_entropy"] += (weight if wanted else 1) * binary(
                        pixels[n, 3, y, x], wanted
                    )
                expected["auxiliary"] += binary(denied[n, 0, y, x], 0)
                expected["distillation"] += sum(
                    binary(pixels[n, c, y, x], sigmoid(known[n, c, y, x])) for c in (1, 2)
                )
    expected = {name: value / 512 for name, value in expected.items()}
    height, width = features.shape[2:]
    for n in range(2):
        for y in range(height):
            for x in range(width):
                for c in (1, 2):
                    mine = features[n, :, y, x] * rows[c]
                    theirs = taught[n, :, y, x] * old[0][c].numpy()
                    for sign in (1, -1):
                        score, target = (float(t[sign * t > 0].sum()) for t in (mine, theirs))
                        expected["reasoning"] += binary(score, sigmoid(target)) / (2 * height * width)
    expected["distillation"] *= 5
    expected["reasoning"] *= 5
    assert found == pytest.approx(expected, rel=1e-9)


def test_features_of_one_sign_are_split_by_the_weights(begun):
    """What the paper says of features behind a ReLU."""
    features, rows = torch.rand(2, 6, 3, 3, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    positive, negative = reasoning_scores(features, rows)
    torch.testing.assert_close(positive, torch.einsum("ndhw,kd->nkhw", features, rows.relu()))
    torch.testing.assert_close(negative, torch.einsum("ndhw,kd->nkhw", features, -(-rows).relu()))


def test_new_rows_are_the_auxiliary_classifier(begun):
    _, model, old, _ = begun()
    rows, biases = model.head.joined()
    assert torch.equal(rows[:3], old[0]) and torch.equal(biases[:3], old[1])
    assert torch.equal(rows[3], old[0][0]) and torch.equal(biases[3], old[1][0])
    assert model.rule == "sigmoid"


def test_without_the_auxiliary_classifier_new_rows_are_random(begun):
    _, model, old, _ = begun(auxiliary=0.0)
    rows, biases = model.head.joined()
    assert torch.equal(rows[:3], old[0]) and torch.equal(biases[:3], old[1])
    assert not torch.equal(rows[3], old[0][0]) and biases[3] == 0


def test_the_auxiliary_loss_trains_its_row_only(begun):
    method, model, old, batch = begun()
    output, teacher = outputs(model, old, batch)
    method.losses(batch, output, teacher)["auxiliary"].backward()
    touched = {name for name, one in model.named_parameters() if one.grad is not None and one.grad.any()}
    assert touched == {"head.rows.0", "head.biases.0"}
    assert not model.head.rows[0].grad[1:].any()
    assert model.head.rows[0].grad[0].any()


@pytest.mark.parametrize(
    ("data", "step", "weight"),
    [("voc", 0, 2), ("voc", 1, 1), ("ade20k", 0, 35), ("ade20k", 1, 35), ("x", 0, 2)],
)
def test_weight_of_a_class_s_own_pixels(begun, monkeypatch, data, step, weight):
    method, model, old, batch = begun()
    output, _ = outputs(model, old, batch)
    method.step = open_run(toy_config("dkd")).scenario[step]
    monkeypatch.setattr(type(method.step.train.dataset), "name", data)
    loss = Mock(return_value=torch.tensor(0.0))
    monkeypatch.setattr(dkd, "binary_cross_entropy", loss)
    method.losses(batch, output, None)
    assert loss.call_args.kwargs["positive"] == weight
