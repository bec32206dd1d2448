"""The contrast that keeps no matrix against the one that does."""

import pytest
import torch

from tiss.losses import chunks, patch_contrast


def random_tokens(kind=torch.float64, images=3, patches=7, channels=5):
    generator = torch.Generator().manual_seed(1)
    pair = torch.randn(2, images, patches, channels, generator=generator, dtype=torch.float64).to(kind)
    return pair[0].clone().requires_grad_(), pair[1].clone().requires_grad_()


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("tau", [1.0, 0.01])
@pytest.mark.parametrize("budget", [1, 21, 100, 10**6])
def test_values_and_gradients(monkeypatch, signed, tau, budget):
    monkeypatch.setitem(chunks.CHUNK_ELEMENTS, "cpu", budget)
    found, expected = [], []
    for results, fused in ((found, "auto"), (expected, "off")):
        tokens, reference = random_tokens()
        loss = patch_contrast(tokens, reference, signed=signed, tau=tau, fused=fused)
        results += [loss.detach(), *torch.autograd.grad(loss, (tokens, reference))]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_a_detached_reference_costs_no_gradient():
    tokens, reference = random_tokens()
    patch_contrast(tokens, reference.detach()).backward()
    expected = torch.autograd.grad(patch_contrast(tokens, reference, fused="off"), tokens)[0]
    assert reference.grad is None
    torch.testing.assert_close(tokens.grad, expected)


def test_nothing_of_size_n_by_n_is_kept():
    tokens, reference = random_tokens(torch.float32, images=2, patches=64)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        patch_contrast(tokens, reference)
    assert max(kept) < 64 * 64


def test_half_precision_and_autocast():
    tokens, reference = random_tokens(torch.bfloat16)
    tokens, reference = tokens.detach(), reference.detach()
    exact = float(patch_contrast(tokens.double(), reference.double()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert float(patch_contrast(tokens, reference)) == pytest.approx(exact, rel=1e-6)
        assert float(patch_contrast(tokens, reference, fused="off")) == pytest.approx(exact, rel=1e-6)
