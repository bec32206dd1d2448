"""SDR's running prototypes and terms against loops over every position."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.methods.toy import toy_config
from tiss.config import ModelConfig
from tiss.data.base import Batch
from tiss.engine.run import open_scenario
from tiss.losses import Prototypes
from tiss.methods.base import build_method
from tiss.methods.sdr import WithPrototypes, settle
from tiss.models.build import build_model
from tiss.models.contract import Output, Resolution

CHANNELS = 16  # of the tiny ViT's tokens
GRID, SIZE, PADDED = (3, 4), (20, 30), (24, 32)  # 8 pixels a patch, some of them padding


@dataclass
class Case:
    batch: Batch
    output: Output
    teacher: Output | None


def make_case(seed: int, channels: int, old: int | None = None) -> Case:
    """Random labels, features and logits; the old model's logits where `old` is given."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    low = 0 if old is None else old
    label = torch.randint(low, channels, (2, *SIZE), generator=generator)
    label[torch.rand(label.shape, generator=generator) < 0.4] = 0
    label[:, 3, 4:9] = 255
    to = Resolution(SIZE, PADDED)
    features = (draw(2, CHANNELS, *GRID) + 1).requires_grad_()
    output = Output(draw(2, channels, *GRID), (features,), to)
    taught = None if old is None else Output(3 * draw(2, old, *GRID), (draw(2, CHANNELS, *GRID),), to)
    return Case(Batch(torch.zeros(2, 3, *SIZE, dtype=torch.uint8), label, ["a", "b"]), output, taught)


def labelled_features(case: Case) -> list[tuple[int, np.ndarray]]:
    """(class, feature) of every position that has a class: the label in the patch's top left corner, or the
    old model's class where that is the background."""
    features = case.output.features[0].detach().double().numpy()
    found = []
    for image, row, column in np.ndindex(2, *GRID):
        if 8 * row >= SIZE[0] or 8 * column >= SIZE[1]:
            continue  # padding
        value = int(case.batch.label[image, 8 * row, 8 * column])
        if value == 0 and case.teacher is not None:
            value = int(case.teacher.logits[image, :, row, column].argmax())
        if value != 255:
            found.append((value, features[image, :, row, column]))
    return found


@pytest.fixture
def begun() -> tuple[WithPrototypes, Any]:
    """An SDR method at step 0 of the toy scenario, with a model of the right shape."""
    _, scenario = open_scenario(toy_config("sdr"))
    method = build_method("sdr", 3)
    assert isinstance(method, WithPrototypes)
    model = build_model(ModelConfig(encoder="vit_micro_patch8"), scenario[0].classes, 32)
    method.begin(scenario[0], model, seed=0)
    return method, (scenario, model)


def test_prototypes_are_means_over_all_of_training(begun: tuple[WithPrototypes, Any]) -> None:
    method, (scenario, model) = begun
    everything: list[tuple[int, np.ndarray]] = []
    for seed in range(3):
        case = make_case(seed, channels=3)
        method.losses(case.batch, case.output, case.teacher)
        everything += labelled_features(case)
    check_prototypes(method, everything, classes=3)
    method.begin(scenario[1], model, seed=0)  # the head grows, and so do the prototypes
    check_prototypes(method, everything, classes=4)
    for seed in range(3, 5):
        case = make_case(seed, channels=4, old=3)
        method.losses(case.batch, case.output, case.teacher)
        everything += labelled_features(case)
    assert {value for value, _ in everything} == {0, 1, 2, 3}
    check_prototypes(method, everything, classes=4)


def check_prototypes(method: WithPrototypes, features: list[tuple[int, np.ndarray]], classes: int) -> None:
    assert method.prototypes is not None
    assert len(method.prototypes.mean) == len(method.prototypes.count) == classes
    for channel in range(classes):
        own = [feature for value, feature in features if value == channel]
        assert float(method.prototypes.count[channel]) == len(own)
        if own:
            np.testing.assert_allclose(
                method.prototypes.mean[channel].numpy(), np.mean(own, 0), rtol=1e-5, atol=1e-6
            )


def test_terms_use_the_prototypes_of_earlier_batches(begun: tuple[WithPrototypes, Any]) -> None:
    method, (scenario, model) = begun
    before = make_case(0, channels=3)
    terms = method.losses(before.batch, before.output, None)
    assert float(terms["attraction"].detach()) == 0  # there is no prototype yet
    assert "matching" not in terms
    assert "distillation" not in terms
    method.begin(scenario[1], model, seed=0)
    case = make_case(1, channels=4, old=3)
    terms = method.losses(case.batch, case.output, case.teacher)
    found = {name: float(value.detach()) for name, value in terms.items()}
    prototype = {c: np.mean([f for v, f in labelled_features(before) if v == c], 0) for c in range(3)}
    own = {c: np.array([f for v, f in labelled_features(case) if v == c]) for c in range(4)}
    own = {c: features for c, features in own.items() if len(features)}
    means = {c: features.mean(0) for c, features in own.items()}
    assert {1, 2} & set(own)
    known = [c for c in own if c in prototype]
    matching = np.mean([np.mean((means[c] - prototype[c]) ** 2) for c in known if c > 0])
    attraction = np.mean([np.mean((own[c] - prototype[c]) ** 2) for c in known])
    repulsion = np.mean([1 / np.linalg.norm(means[a] - means[b]) for a, b in combinations(own, 2)])
    assert found["matching"] == pytest.approx(0.01 * matching, rel=1e-4)
    assert found["attraction"] == pytest.approx(0.001 * attraction, rel=1e-4)
    assert found["repulsion"] == pytest.approx(0.001 * repulsion, rel=1e-4)
    sum(terms.values()).backward()  # type: ignore[union-attr]
    gradient = case.output.features[0].grad
    assert gradient is not None
    assert torch.isfinite(gradient).all()
    assert gradient.abs().sum() > 0


def test_state_goes_through_a_checkpoint(begun: tuple[WithPrototypes, Any]) -> None:
    method, _ = begun
    case = make_case(0, channels=3)
    method.losses(case.batch, case.output, None)
    other = build_method("sdr+mib", 3)
    assert isinstance(other, WithPrototypes)
    other.load_state({name: value.clone() for name, value in method.state().items()})
    assert {n: v.tolist() for n, v in other.state().items()} == {
        n: v.tolist() for n, v in method.state().items()
    }


def test_a_long_run_goes_on_counting() -> None:
    many = settle(Prototypes(torch.ones(1, 1), torch.full((1,), 2.0**25)), torch.device("cpu"))
    assert float(many.update(torch.ones(1, 1), torch.ones(1)).count - many.count) == 1
