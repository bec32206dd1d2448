"""MBS's labels and losses against loops over every pixel, patch and pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.losses.references import bilinear, cosines, softmax
from tests.methods.toy import toy_config
from tiss.config import ModelConfig
from tiss.data.base import Batch
from tiss.engine.run import open_run
from tiss.errors import TissError
from tiss.methods.base import build_method, check_pair
from tiss.methods.mbs import MBS, selective_labels
from tiss.models import Output, Resolution, build_model

WIDTH, OLD, TOTAL = 16, 3, 4
GRID, SIZE, PADDED = (3, 4), (20, 30), (24, 32)  # 8 pixels a patch, some of them padding


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def case() -> tuple[MBS, Batch, Output, Output]:
    """A step with two old classes and one new one, all in float64."""
    run = open_run(toy_config("mbs", decoder="mask"))
    method = build_method(run.config.method, 3)
    assert isinstance(method, MBS)
    config = ModelConfig(encoder="vit_micro_patch8", decoder="mask")
    model = build_model(config, run.scenario[0].classes, 32)
    for index in (0, 1):
        method.begin(run.scenario[index], model, seed=0)
    for index, rows in enumerate(
        model.head.rows
    ):  # as after some training: the new token is no copy any more
        rows.data = draw(10 + index, *rows.shape)
    generator = torch.Generator().manual_seed(1)
    label = torch.full((2, *SIZE), 3)
    label[torch.rand(label.shape, generator=generator) < 0.7] = 0
    label[:, 4, :16] = 255
    to = Resolution(SIZE, PADDED)
    features = (draw(2, 2, WIDTH, *GRID).requires_grad_(), draw(3, 2, WIDTH, TOTAL, 1).requires_grad_())
    output = Output(draw(4, 2, TOTAL, *GRID).requires_grad_(), features, to)
    taught = (draw(5, 2, WIDTH, *GRID), draw(6, 2, WIDTH, OLD, 1))
    teacher = Output(3 * draw(7, 2, OLD, *GRID), taught, to)
    return method, Batch(torch.zeros(2, 3, *SIZE, dtype=torch.uint8), label, ["a", "b"]), output, teacher


def probabilities(logits: Tensor) -> np.ndarray:
    """N × C × H × W of every pixel."""
    pixels = bilinear(logits.detach().numpy(), *PADDED)[..., : SIZE[0], : SIZE[1]]
    found = np.zeros_like(pixels)
    for n, y, x in np.ndindex(2, *SIZE):
        found[n, :, y, x] = softmax(pixels[n, :, y, x])
    return found


def selected(label: int, known: np.ndarray) -> int:
    if label:
        return label
    best = int(known.argmax())
    if best and known[best] >= 0.7:
        return best
    return 255 if known[0] < known[1:].sum() else 0


def test_the_losses(case) -> None:
    method, batch, output, teacher = case
    terms = {name: float(value.detach()) for name, value in method.losses(batch, output, teacher).items()}
    known, student, count = probabilities(teacher.logits), probabilities(output.logits), batch.label.numel()
    labels, hard, soft = np.zeros((2, *SIZE), dtype=int), 0.0, 0.0
    for n, y, x in np.ndindex(2, *SIZE):
        given, p, q = int(batch.label[n, y, x]), known[n, :, y, x], student[n, :, y, x]
        labels[n, y, x] = value = selected(given, p)
        hard -= math.log(q[value]) / count if value != 255 else 0
        target = np.append(p, 0.0)
        if given == 3:
            target[[3, 0]] = target[[0, 3]]
        soft -= float((target * np.log(q)).sum()) / TOTAL / count
    assert {0, 1, 2, 3, 255} == set(labels.flatten())
    assert terms["cross_entropy"] == pytest.approx(hard, rel=1e-10)
    assert terms["distillation"] == pytest.approx(25 * soft, rel=1e-10)

    (patches, classes), (old_patches, old_classes) = (
        [each.detach().numpy() for each in one.features] for one in (output, teacher)
    )
    total, trusted = 0.0, 0
    for n, y, x in np.ndindex(2, *GRID):
        row, column = 8 * y + 4, 8 * x + 4
        value = labels[n, row, column] if row < SIZE[0] and column < SIZE[1] else 255
        share = {0: softmax(teacher.logits[n, :, y, x].numpy())[0], 1: 1.0, 2: 1.0}.get(int(value), 0.0)
        total += share * float(np.mean((patches[n, :, y, x] - old_patches[n, :, y, x]) ** 2))
        trusted += share > 0
    assert 0 < trusted < 24
    features = total / trusted + float(np.mean((classes[:, :, :OLD] - old_classes) ** 2))
    assert terms["features"] == pytest.approx(features, rel=1e-10)

    tokens = method.model.head.joined()[0].detach().numpy()
    similarity = np.abs(cosines(tokens, tokens)[3, :3]).mean()
    assert terms["orthogonal"] == pytest.approx(similarity / 4, rel=1e-10)


def test_what_each_loss_trains(case) -> None:
    method, batch, output, teacher = case
    terms = method.losses(batch, output, teacher)
    old, new = method.model.head.rows
    to_old, to_new = torch.autograd.grad(terms["orthogonal"], (old, new))
    assert not to_old.any() and to_new.any()  # only the new class's token moves
    patches, classes = torch.autograd.grad(terms["features"], output.features)
    assert not classes[:, :, OLD:].any() and classes[:, :, :OLD].any()
    new_patch = batch.label[:, 4::8, 4::8] == 3
    assert (
        new_patch.any()
        and not patches[:, :, :2][new_patch[:, None].expand(-1, WIDTH, -1, -1)[:, :, :2]].any()
    )


def test_new_tokens_start_as_the_background() -> None:
    run = open_run(toy_config("mbs", decoder="mask"))
    model = build_model(ModelConfig(encoder="vit_micro_patch8", decoder="mask"), run.scenario[0].classes, 32)
    method = build_method(run.config.method, 3)
    method.begin(run.scenario[1], model, seed=0)
    first, new = model.head.rows
    assert torch.equal(new, first[:1])


def test_the_first_step_is_plain(case) -> None:
    method, batch, output, _ = case
    batch = Batch(batch.image, batch.label.clamp(max=2), batch.ids)
    assert set(method.losses(batch, output, None)) == {"cross_entropy"}


def test_labelled_and_ignored_pixels_stay() -> None:
    known = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1).expand(1, 2, 1, 3)
    assert selective_labels(torch.tensor([[[0, 2, 255]]]), known, 0.7).tolist() == [[[1, 2, 255]]]


def test_a_decoder_without_class_tokens_is_refused() -> None:
    config = toy_config("mbs")
    with pytest.raises(TissError, match=r"works with the head mask, not linear"):
        check_pair(config.method, config.model)
