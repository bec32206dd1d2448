"""Pixel losses against golden values, loops, invariants and numeric gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.losses import references
from tiss.losses import cross_entropy, distillation, unbiased_cross_entropy, unbiased_distillation
from tiss.models import Resolution


def random_case(seed, images=2, old=3, new=2, size=(5, 4), to=(9, 7), ignore=0.2):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(images, old + new, *size, generator=generator, dtype=torch.float64) * 3
    teacher = torch.randn(images, old, *size, generator=generator, dtype=torch.float64) * 3
    labels = torch.randint(0, old + new, (images, *to), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < ignore] = 255
    return logits, teacher, labels


@pytest.mark.parametrize("case", range(4))
@pytest.mark.parametrize("name", ["unbiased_ce", "unbiased_kd", "kd"])
def test_golden_values_and_gradients(case, name):
    with np.load(references.FIXTURES / f"mib_{case}.npz") as golden:
        logits = torch.from_numpy(golden["logits"]).requires_grad_()
        teacher, labels = torch.from_numpy(golden["teacher"]), torch.from_numpy(golden["labels"])
        loss = {
            "unbiased_ce": lambda: unbiased_cross_entropy(logits, labels, int(golden["old"])),
            "unbiased_kd": lambda: unbiased_distillation(logits, teacher),
            "kd": lambda: distillation(logits, teacher),
        }[name]()
        (gradient,) = torch.autograd.grad(loss, logits)
        assert float(loss.detach()) == pytest.approx(float(golden[name]), abs=1e-9)
        np.testing.assert_allclose(gradient.numpy(), golden[f"{name}_grad"], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 1), (4, 3)])
def test_against_loops_with_upsampling(old, new):
    logits, teacher, labels = random_case(old, old=old, new=new)
    pixels = references.bilinear(logits.numpy(), 9, 7)
    teacher_pixels = references.bilinear(teacher.numpy(), 9, 7)
    to = Resolution.of(9, 7)
    pairs = [
        (cross_entropy(logits, labels), references.cross_entropy(pixels, labels.numpy())),
        (unbiased_cross_entropy(logits, labels, old), references.cross_entropy(pixels, labels.numpy(), old)),
        (distillation(logits, teacher, to=to), references.distillation(pixels, teacher_pixels)),
    ]
    for divide in (True, False):
        expected = references.unbiased_distillation(pixels, teacher_pixels, divide)
        pairs.append((unbiased_distillation(logits, teacher, divide, to=to), expected))
    for found, expected in pairs:
        assert float(found) == pytest.approx(expected, rel=1e-12)


def test_padded_input_is_upsampled_to_the_padded_size_and_cropped():
    logits, _, labels = random_case(3, size=(3, 2), to=(10, 7))
    pixels = references.bilinear(logits.numpy(), 12, 8)[..., :10, :7]
    loss = cross_entropy(logits, labels, to=Resolution((10, 7), (12, 8)))
    assert float(loss) == pytest.approx(references.cross_entropy(pixels, labels.numpy()), rel=1e-12)


def test_ignored_pixels_stay_in_the_denominator_and_get_no_gradient():
    logits, _, labels = random_case(5, size=(4, 4), to=(4, 4), ignore=0)
    logits.requires_grad_()
    labels[:, 2:] = 255
    loss = unbiased_cross_entropy(logits, labels, 3)
    half = unbiased_cross_entropy(logits[:, :, :2], labels[:, :2], 3)
    assert float(loss.detach()) == pytest.approx(float(half.detach()) / 2)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert not gradient[:, :, 2:].any()
    assert gradient[:, :, :2].any()


def test_image_weights_multiply_before_the_mean():
    logits, _, labels = random_case(7, images=3)
    each = [float(cross_entropy(logits[i : i + 1], labels[i : i + 1])) for i in range(3)]
    weights = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    loss = cross_entropy(logits, labels, image_weights=weights)
    assert float(loss) == pytest.approx((0.5 * each[1] + each[2]) / 3)


def test_the_teacher_gets_no_gradient():
    logits, teacher, _ = random_case(10)
    logits.requires_grad_()
    teacher.requires_grad_()
    (unbiased_distillation(logits, teacher) + distillation(logits, teacher)).backward()
    assert teacher.grad is None


def test_half_precision_logits_are_reduced_in_float32():
    logits, _, labels = random_case(11)
    loss = cross_entropy(logits.bfloat16(), labels)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(cross_entropy(logits.bfloat16().double(), labels)), rel=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**31), st.floats(-50, 50))
def test_a_constant_on_all_logits_changes_nothing(old, new, seed, shift):
    logits, teacher, labels = random_case(seed, old=old, new=new)
    for loss in (
        lambda z: unbiased_cross_entropy(z, labels, old),
        lambda z: unbiased_distillation(z, teacher),
        lambda z: distillation(z, teacher),
    ):
        assert float(loss(logits + shift)) == pytest.approx(float(loss(logits)), abs=1e-9)
