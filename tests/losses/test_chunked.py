"""The losses by rows against the definition in float64 and loops over pixels, and the choice between the two."""

import dataclasses
import math

import pytest
import torch

from tests.losses.cases import CASES, errors, evaluate, in_double
from tiss.errors import TissError
from tiss.losses import (
    binary_cross_entropy,
    binary_distillation,
    unbiased_cross_entropy,
    unbiased_distillation,
    unbiased_losses,
)
from tiss.losses.chunked import BINARY_ELEMENTS, chunked
from tiss.losses.pixel import choose, plain
from tiss.models import Resolution


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_float32_within_tolerance(name, channels_last):
    found = errors(chunked, CASES[name].make(), channels_last=channels_last)
    assert max(found["hard"], found["soft"]) < 1e-5
    assert found["gradient"] < 1e-4


BUDGETS = [*((name, None) for name in CASES), ("odd size", 1), ("odd size", 200)]


@pytest.mark.parametrize(("name", "budget"), BUDGETS)
def test_float64_is_the_definition(monkeypatch, name, budget):
    if budget is not None:
        monkeypatch.setattr("tiss.losses.chunked.CHUNK_ELEMENTS", budget)
    assert max(errors(chunked, in_double(CASES[name].make())).values()) < 1e-10


def test_half_precision_in_half_precision_out():
    task = CASES["patch 16"].make(kind=torch.bfloat16)
    hard, _, gradient = evaluate(chunked, task)
    exact, _, reference = evaluate(plain, in_double(task))
    assert hard == pytest.approx(exact, rel=1e-5)
    assert float((gradient - reference).abs().max() / reference.abs().max()) < 1e-2
    logits = task.logits.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = binary_cross_entropy(logits, task.labels, to=task.to)
    loss.backward()
    exact = binary_cross_entropy(task.logits.double(), task.labels, to=task.to)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-6)
    assert logits.grad.dtype == torch.bfloat16


def test_autocast_does_not_lower_the_precision():
    task = CASES["patch 16"].make()
    exact = evaluate(plain, in_double(task))[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = unbiased_cross_entropy(
            task.logits, task.labels, task.split, to=task.to, image_weights=task.image_weights
        )
    assert float(loss) == pytest.approx(exact, rel=1e-6)


def test_losses_can_be_added_up_in_place():
    task = CASES["patch 16"].make()
    task.logits.requires_grad_()
    hard, soft = chunked(task)
    hard += soft
    hard.backward()
    assert task.logits.grad.isfinite().all()


def test_losses_together_equal_losses_apart():
    task = CASES["odd size"].make()
    together = unbiased_losses(task.logits, task.labels, task.teacher, to=task.to)
    apart = (
        unbiased_cross_entropy(task.logits, task.labels, task.split, to=task.to),
        unbiased_distillation(task.logits, task.teacher, to=task.to),
    )
    torch.testing.assert_close(together, apart)


@pytest.mark.parametrize(
    ("fused", "size", "expected"),
    [("auto", (32, 32), chunked), ("auto", (2, 2), plain), ("on", (2, 2), chunked), ("off", (32, 32), plain)],
)
def test_choice(fused, size, expected):
    task = CASES["patch 16"].make()
    task = dataclasses.replace(task, to=Resolution(size, size, fused))
    assert choose(task) is expected


def test_a_teacher_of_another_size_takes_the_plain_path_or_says_so():
    task = CASES["patch 16"].make()
    larger = torch.nn.functional.interpolate(task.teacher, (4, 4))
    assert choose(dataclasses.replace(task, teacher=larger)) is plain
    demanded = dataclasses.replace(task, teacher=larger, to=Resolution((32, 32), (32, 32), "on"))
    with pytest.raises(TissError, match=r"train\.fused on"):
        choose(demanded)


BINARY = {
    "all but the background": lambda z, task, to: binary_cross_entropy(z, task.labels, to=to),
    "all channels": lambda z, task, to: binary_cross_entropy(z, task.labels, to=to, first=0),
    "new channels, weighted": lambda z, task, to: binary_cross_entropy(
        z, task.labels, to=to, first=task.split, positive=3.5
    ),
    "distillation": lambda z, task, to: binary_distillation(z, task.teacher, to=to),
}


NOTHING = (
    ("distillation", "one old class"),
    ("new channels, weighted", "no new class"),
)  # no class to compare
PAIRS = [(loss, *pair) for loss in BINARY for pair in BUDGETS if (loss, pair[0]) not in NOTHING]


@pytest.mark.parametrize(("loss", "name", "budget"), PAIRS)
def test_binary_losses_by_rows_are_the_definition(monkeypatch, loss, name, budget):
    if budget is not None:
        monkeypatch.setitem(BINARY_ELEMENTS, "cpu", budget)
    task = in_double(CASES[name].make())
    found = []
    for fused in ("off", "on"):
        z = task.logits.clone().requires_grad_()
        value = BINARY[loss](z, task, Resolution(task.to.size, task.to.padded, fused))
        (3 * value).backward()
        found.append((value.detach(), z.grad))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-12, atol=0)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-10, atol=1e-14)
    assert loss == "all channels" or (found[1][1][:, 0] == 0).all()  # the background has no sigmoid


def test_binary_losses_channel_by_channel():
    """Against log σ written out: 3 channels, of which 2 are old, and a teacher of those."""
    z, teacher, labels = [0.3, -1.2, 2.5], [0.9, -0.4], [2, 1, 0, 255]
    logits = torch.tensor(z, dtype=torch.float64).view(1, 3, 1, 1).expand(1, 3, 1, 4)
    sigmoids = [1 / (1 + math.exp(-value)) for value in z]
    soft = 1 / (1 + math.exp(-teacher[1]))
    taught = torch.tensor(teacher, dtype=torch.float64).view(1, 2, 1, 1).expand(1, 2, 1, 4)
    label = torch.tensor([[labels]])
    off = [-math.log(1 - one) for one in sigmoids]
    on = [-math.log(one) for one in sigmoids]
    every = (off[0] + off[1] + on[2]) + (off[0] + on[1] + off[2]) + (on[0] + off[1] + off[2])
    assert float(binary_cross_entropy(logits, label, first=0)) == pytest.approx(every / 4, rel=1e-12)
    new = 7 * on[2] + 2 * off[2]
    found = float(binary_cross_entropy(logits, label, first=2, positive=7))
    assert found == pytest.approx(new / 4, rel=1e-12)
    expected = soft * on[1] + (1 - soft) * off[1]
    assert float(binary_distillation(logits, taught)) == pytest.approx(expected, rel=1e-12)


def test_pixel_by_pixel():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 4, 3, 2, generator=generator, dtype=torch.float64) * 3
    labels = torch.tensor([[[0, 1], [2, 3], [255, 0]], [[3, 3], [255, 255], [1, 2]]])
    total = 0.0
    for image, row, column in torch.cartesian_prod(
        torch.arange(2), torch.arange(3), torch.arange(2)
    ).tolist():
        label = int(labels[image, row, column])
        for channel in range(1, 4) if label != 255 else ():
            probability = 1 / (1 + math.exp(-float(logits[image, channel, row, column])))
            total -= math.log(probability if channel == label else 1 - probability)
    assert float(binary_cross_entropy(logits, labels)) == pytest.approx(total / 12, rel=1e-12)


def test_a_label_of_no_channel_is_background():
    logits = torch.randn(1, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[[3, 1], [200, 2]]])
    for fused in ("on", "off"):
        to = Resolution((2, 2), (2, 2), fused)
        known = binary_cross_entropy(logits, labels * (labels < 3), to=to)
        assert binary_cross_entropy(logits, labels, to=to) == known
        assert binary_cross_entropy(logits, labels.to(torch.uint8), to=to) == known


def test_precision_of_products_is_left_as_it_was():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        binary_cross_entropy(torch.zeros(1, 2, 2, 2), torch.zeros(1, 4, 4).long())
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_large_logits_stay_finite():
    logits = torch.tensor([0.0, 1e4, -1e4]).view(1, 3, 1, 1).requires_grad_()
    loss = binary_cross_entropy(logits, torch.tensor([[[2]]]))
    loss.backward()
    assert loss.item() == 2e4
    assert logits.grad.flatten().tolist() == [0.0, 1.0, -1.0]
