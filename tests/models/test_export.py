"""Compiled forward passes: one graph, and no compilation again after growth."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from tests.models.tester import make_model, pictures
from tiss.models.timm_encoder import knows

PAIRS = [
    ("vit_micro_patch8", "linear"),
    ("vit_micro_patch8", "mask"),
    ("resnet_micro", "deeplabv3"),
    ("resnet_micro", "deeplabv3plus"),
    ("mit_micro", "mlp"),
    ("swin_micro", "mlp"),
]


def skip_without_timm(encoder: str) -> None:
    if encoder.startswith("swin") and not knows("resnet18"):
        pytest.skip("timm is not installed")


def test_growth_does_not_compile_the_body_again() -> None:
    torch._dynamo.reset()
    model = make_model("vit_micro_patch8", crop=32).eval()
    counter = CompileCounter()
    model.body.compile(backend=counter, fullgraph=True)
    model(pictures(2, 32, 32), (0, -1))
    assert counter.frame_count == 1
    assert not any(name.count("_orig_mod") for name in model.state_dict())
    model.grow(["horse", "cow"], "background")
    assert model(pictures(2, 32, 32), (0, -1)).logits.shape[1] == 5
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_compiles_whole_with_gradients(encoder: str, decoder: str) -> None:
    skip_without_timm(encoder)
    torch._dynamo.reset()
    model = make_model(encoder, decoder)
    images = pictures(2, 64, 64)
    needs = (0, -1, "decoder")
    plain = model(images, needs)
    plain.logits.square().mean().backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    output = compiled(images, needs)
    output.logits.square().mean().backward()
    torch.testing.assert_close(output.logits, plain.logits, atol=1e-5, rtol=1e-4)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-5, rtol=1e-3)
