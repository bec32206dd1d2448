"""SDR's running prototypes and terms against loops over every position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.methods.toy import toy_config
from tiss.config import ModelConfig
from tiss.data.base import Batch
from tiss.engine.run import open_run
from tiss.losses import (
    Prototypes,
    cross_entropy,
    distillation,
    feature_sparsity,
    prototype_attraction,
    prototype_labels,
    prototype_matching,
    prototype_repulsion,
    unbiased_losses,
)
from tiss.methods.base import build_method
from tiss.methods.sdr import WithPrototypes, widen
from tiss.models import Output, Resolution, build_model

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


Begin = Callable[[int], WithPrototypes]


@pytest.fixture
def begun(request: pytest.FixtureRequest) -> Begin:
    """Begins a step of the toy scenario; the parameter is (official, setup)."""
    official, setup = getattr(request, "param", (True, "overlapped"))
    scenario = open_run(toy_config("sdr")).scenario
    method = build_method({"name": "sdr", "official": official}, 3)
    assert isinstance(method, WithPrototypes)
    model = build_model(ModelConfig(encoder="vit_micro_patch8"), scenario[0].classes, 32)

    def begin(index: int) -> WithPrototypes:
        method.begin(replace(scenario[index], setup=setup), model, seed=0)
        return method

    return begin


@pytest.mark.parametrize(
    ("begun", "background_at"),
    [((False, "overlapped"), {0, 1}), ((True, "overlapped"), set()), ((True, "disjoint"), {0})],
    indirect=["begun"],
)
def test_prototypes_are_means_over_all_of_training(begun: Begin, background_at: set[int]) -> None:
    everything: list[tuple[int, np.ndarray]] = []
    for step, old in ((0, None), (1, 3)):
        method = begun(step)
        for seed in range(3):
            case = make_case(3 * step + seed, channels=3 + step, old=old)
            method.losses(case.batch, case.output, case.teacher)
            everything += [(c, f) for c, f in labelled_features(case) if c > 0 or step in background_at]
        assert len(method.prototypes.mean) == len(method.prototypes.count) == 3 + step  # as the head grows
        for channel, (mean, count) in enumerate(
            zip(method.prototypes.mean, method.prototypes.count, strict=True)
        ):
            own = [feature for value, feature in everything if value == channel]
            assert float(count) == len(own)
            np.testing.assert_allclose(
                mean.numpy(), np.mean(own or [0 * mean.numpy()], 0), rtol=1e-5, atol=1e-6
            )
    assert {1, 2, 3} <= {value for value, _ in everything}


@pytest.mark.parametrize("begun", [(False, "overlapped"), (True, "overlapped")], indirect=True)
def test_terms_use_the_prototypes_of_earlier_batches(begun: Begin) -> None:
    method, before = begun(0), make_case(0, channels=3)
    official = method.settings.official
    terms = method.losses(before.batch, before.output, None)
    assert set(terms) == {"cross_entropy", "sparsity"} | (set() if official else {"attraction", "repulsion"})
    assert official or float(terms["attraction"].detach()) == 0  # there is no prototype yet
    method, case = begun(1), make_case(1, channels=4, old=3)
    known = Prototypes(method.prototypes.mean.float(), method.prototypes.count.clone())
    assert known.count[1:3].all() and bool(known.count[0]) != official
    terms = method.losses(case.batch, case.output, case.teacher)
    to, (logits, label) = case.output.resolution, (case.output.logits, case.batch.label)
    assert case.teacher is not None
    padded = F.pad(label, (0, PADDED[1] - SIZE[1], 0, PADDED[0] - SIZE[0]), value=255)
    given = case.output.features[0], prototype_labels(padded, GRID, case.teacher.logits)
    hard, soft = unbiased_losses(logits, label, case.teacher.logits, to=to)
    if not official:
        hard, soft = cross_entropy(logits, label, to=to), distillation(logits, case.teacher.logits, to=to)
    expected = {
        "cross_entropy": hard,
        "distillation": 100 * soft,
        "matching": 0.01 * prototype_matching(*given, known, 3),
        "attraction": 0.001 * prototype_attraction(*given, known),
        "repulsion": 0.001 * prototype_repulsion(*given, 4),
        "sparsity": 0.001 * feature_sparsity(*given, 4),
    }
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value, msg=name)


def test_state_goes_through_a_checkpoint(begun: Begin) -> None:
    method, case = begun(0), make_case(0, channels=3)
    method.losses(case.batch, case.output, None)
    state = {name: value.clone() for name, value in method.state().items()}
    other = build_method("sdr+mib", 3)
    other.load_state(state)
    assert {n: v.tolist() for n, v in other.state().items()} == {n: v.tolist() for n, v in state.items()}
    grown = begun(1)  # what a resumed run does: the step begins, then the state of the last one is loaded
    expected = {name: value.clone() for name, value in grown.state().items()}
    grown.load_state(state)
    assert all(torch.equal(value, expected[name]) for name, value in grown.state().items())


def test_a_long_run_keeps_counting() -> None:
    many = widen(Prototypes(torch.ones(1, 1), torch.full((1,), 2.0**25)), 1, 1, torch.device("cpu"))
    assert float(many.update(torch.ones(1, 1), torch.ones(1)).count - many.count) == 1
