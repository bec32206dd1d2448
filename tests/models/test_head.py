"""Heads grow exactly; predictions follow the rule."""

from __future__ import annotations

import pytest
import torch

from tests.models.tester import make_model, pictures
from tiss.errors import TissError
from tiss.models import HEADS, choose_labels


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize("new", [1, 5])
def test_growth_keeps_probabilities(kind: str, new: int) -> None:
    """Both invariants, in float64: p({b} ∪ new) = p_before(b); every old class keeps its probability."""
    torch.manual_seed(0)
    head = HEADS.get(kind)(8, (4,)).double()
    torch.nn.init.normal_(head.biases[0])
    features = torch.randn(2, 8, 3, 5, dtype=torch.float64)
    before = head(features).softmax(1)
    head.grow(new, "background", torch.Generator())
    after = head(features).softmax(1)
    torch.testing.assert_close(after[:, 0] + after[:, 4:].sum(1), before[:, 0], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(after[:, 1:4], before[:, 1:], atol=1e-12, rtol=1e-12)


def test_random_growth_leaves_old_logits_and_follows_the_seed() -> None:
    models = [make_model("vit_micro_patch8") for _ in range(3)]
    images = pictures(1, 32, 32)
    before = models[0](images).logits
    for model, seed in zip(models, (1, 1, 2), strict=True):
        torch.manual_seed(seed + 100)  # the global state plays no part
        model.grow(["horse"], "random", seed=seed)
    torch.testing.assert_close(models[0](images).logits[:, :3], before)
    assert torch.equal(models[0].head.rows[1], models[1].head.rows[1])
    assert not torch.equal(models[0].head.rows[1], models[2].head.rows[1])


def test_rows_of_earlier_steps_can_be_frozen_exactly() -> None:
    model = make_model("vit_micro_patch8")
    model.grow(["horse"], "background")
    for parameter in model.head.group_parameters(0):
        parameter.requires_grad_(False)
    before = model.head.rows[0].clone()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1)
    model(pictures(1, 32, 32)).logits.square().mean().backward()
    optimizer.step()
    assert torch.equal(model.head.rows[0], before)


def test_a_class_cannot_come_twice() -> None:
    model = make_model("vit_micro_patch8")
    with pytest.raises(TissError, match="class 'dog' is named twice"):
        model.grow(["dog"], "background")
    with pytest.raises(TissError, match="at least one class"):
        model.grow([], "background")
    assert model.classes == ["background", "cat", "dog"]


def test_labels_by_sigmoid() -> None:
    """The largest foreground sigmoid if over .5, else the background, whatever channel 0 says."""
    pixels = torch.tensor([[9.0, -1.0, -2.0], [9.0, 0.5, 0.1], [-9.0, -0.1, 0.2]]).T.reshape(1, 3, 1, 3)
    assert choose_labels(pixels, "sigmoid").tolist() == [[[0, 1, 2]]]
    assert choose_labels(pixels, "softmax").tolist() == [[[0, 0, 2]]]
