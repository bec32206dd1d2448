"""One sigmoid a class: the rows-at-a-time path against the definition, and against a loop over pixels."""

import math

import pytest
import torch

from tests.losses.cases import CASES, in_double
from tiss.losses import binary, binary_cross_entropy
from tiss.models.contract import Resolution


def both_ways(logits, labels, to):
    found = []
    for fused in ("off", "on"):
        z = logits.clone().requires_grad_()
        loss = binary_cross_entropy(z, labels, to=Resolution(to.size, to.padded, fused))
        (3 * loss).backward()
        found.append((loss.detach(), z.grad))
    return found


@pytest.mark.parametrize("name", CASES)
def test_float64_is_the_definition(name):
    task = in_double(CASES[name].make())
    (plain, slope), (fused, gradient) = both_ways(task.logits, task.labels, task.to)
    torch.testing.assert_close(fused, plain, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, slope, rtol=1e-10, atol=1e-14)
    assert (gradient[:, 0] == 0).all()  # the background has no sigmoid


@pytest.mark.parametrize("budget", [1, 300])
def test_chunks_add_up(monkeypatch, budget):
    monkeypatch.setitem(binary.CHUNK_ELEMENTS, "cpu", budget)
    task = in_double(CASES["odd size"].make())
    (plain, slope), (fused, gradient) = both_ways(task.logits, task.labels, task.to)
    torch.testing.assert_close(fused, plain)
    torch.testing.assert_close(gradient, slope)


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


def test_half_precision_in_half_precision_out():
    task = CASES["patch 16"].make(kind=torch.bfloat16)
    logits = task.logits.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = binary_cross_entropy(logits, task.labels, to=task.to)
    loss.backward()
    exact = binary_cross_entropy(task.logits.double(), task.labels, to=task.to)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-6)
    assert logits.grad.dtype == torch.bfloat16


def test_large_logits_stay_finite():
    logits = torch.tensor([0.0, 1e4, -1e4]).view(1, 3, 1, 1).requires_grad_()
    loss = binary_cross_entropy(logits, torch.tensor([[[2]]]))
    loss.backward()
    assert loss.item() == 2e4
    assert logits.grad.flatten().tolist() == [0.0, 1.0, -1.0]
