"""Patch losses against loops and numeric gradients; the contrast in chunks against the one that keeps a matrix."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.losses import references
from tiss.losses import feature_distillation, patch_contrast, patch_similarity, patches


def random_tokens(seed, images=2, patches=5, channels=4):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(2, images, patches, channels, generator=generator, dtype=torch.float64)).unbind(0)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_contrast_against_loops(signed, tau):
    tokens, reference = random_tokens(1)
    total = 0.0
    for image, other in zip(tokens.numpy(), reference.numpy(), strict=True):
        cosine = references.cosines(image, other)
        rows = (cosine if signed else np.abs(cosine)) / tau
        total += sum(-math.log(references.softmax(row)[i]) for i, row in enumerate(rows))
    expected = total / tokens.shape[0] / tokens.shape[1]
    assert float(patch_contrast(tokens, reference, signed=signed, tau=tau)) == pytest.approx(
        expected, rel=1e-12
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.integers(1, 6), st.integers(0, 2**31))
def test_the_contrast_stays_within_its_bounds(patches, channels, seed):
    tokens, reference = random_tokens(seed, patches=patches, channels=channels)
    loss = float(patch_contrast(tokens, reference))
    low, high = math.log(math.e + patches - 1) - 1, math.log(1 + (patches - 1) * math.e)
    assert low - 1e-12 <= loss <= high + 1e-12


def test_similarity_against_loops():
    tokens, reference = random_tokens(4)
    matrices = [
        np.abs(references.cosines(a, b)) for a, b in zip(tokens.numpy(), reference.numpy(), strict=True)
    ]
    positive, negative = patch_similarity(tokens, reference)
    off_diagonal = [m[i, j] for m in matrices for i in range(5) for j in range(5) if i != j]
    assert float(positive) == pytest.approx(np.mean([m[i, i] for m in matrices for i in range(5)]), rel=1e-12)
    assert float(negative) == pytest.approx(np.mean(off_diagonal), rel=1e-12)


@pytest.mark.parametrize("power", [1, 2])
def test_feature_distillation_reductions(power):
    student, teacher = random_tokens(5), random_tokens(6)
    distances = [np.abs((a - b).numpy()) ** power for a, b in zip(student, teacher, strict=True)]
    mean, total = (feature_distillation(student, teacher, power, how) for how in ("mean", "sum"))
    assert float(mean) == pytest.approx(np.mean(distances), rel=1e-12)
    assert float(total) == pytest.approx(np.mean([d.sum((1, 2)).mean() for d in distances]), rel=1e-12)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("tau", [1.0, 0.01])
@pytest.mark.parametrize("budget", [1, 21, 100, 10**6])
def test_chunks_equal_the_whole_matrix(monkeypatch, signed, tau, budget):
    monkeypatch.setitem(patches.CHUNK_ELEMENTS, "cpu", budget)
    found, expected = [], []
    for results, fused in ((found, "auto"), (expected, "off")):
        tokens, reference = (t.requires_grad_() for t in random_tokens(1, 3, 7, 5))
        loss = patch_contrast(tokens, reference, signed=signed, tau=tau, fused=fused)
        results += [loss.detach(), *torch.autograd.grad(loss, (tokens, reference))]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_a_detached_reference_costs_no_gradient():
    tokens, reference = (t.requires_grad_() for t in random_tokens(1))
    patch_contrast(tokens, reference.detach()).backward()
    expected = torch.autograd.grad(patch_contrast(tokens, reference, fused="off"), tokens)[0]
    assert reference.grad is None
    torch.testing.assert_close(tokens.grad, expected)


def test_nothing_of_size_n_by_n_is_kept():
    tokens, reference = (t.float().requires_grad_() for t in random_tokens(1, patches=64))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        patch_contrast(tokens, reference)
    assert max(kept) < 64 * 64


def test_half_precision_and_autocast():
    tokens, reference = (t.bfloat16() for t in random_tokens(1))
    exact = float(patch_contrast(tokens.double(), reference.double()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert float(patch_contrast(tokens, reference)) == pytest.approx(exact, rel=1e-6)
        assert float(patch_contrast(tokens, reference, fused="off")) == pytest.approx(exact, rel=1e-6)
