"""Files as transformers writes them load strictly and give transformers' features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tiss.models import EncoderOptions, load_pretrained
from tiss.models.vit import VisionTransformer, VitSettings

transformers = pytest.importorskip("transformers")

SHAPE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "layer_norm_eps": 1e-6,
}


@pytest.mark.parametrize(
    ("kind", "more", "settings"),
    [
        ("ViT", {"intermediate_size": 64}, VitSettings(16, 2, 2, 8, 32)),
        ("Dinov2", {}, VitSettings(16, 2, 2, 8, 32, layer_scale=1.0)),
        (
            "Dinov2WithRegisters",
            {"num_register_tokens": 3},
            VitSettings(16, 2, 2, 8, 32, layer_scale=1.0, registers=3, class_position=False),
        ),
    ],
)
def test_features_equal(kind: str, more: dict[str, Any], settings: VitSettings, tmp_path: Path) -> None:
    torch.manual_seed(0)
    configuration = getattr(transformers, f"{kind}Config")(**SHAPE, **more)
    published = getattr(transformers, f"{kind}Model")(configuration).eval()
    for parameter in published.parameters():  # as trained ones: away from ones and zeros
        torch.nn.init.normal_(parameter, std=0.2)
    published.save_pretrained(tmp_path)
    encoder = VisionTransformer("test", settings, EncoderOptions()).eval()
    load_pretrained(encoder, str(tmp_path))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = published(images).last_hidden_state[:, encoder.prefix :]
        (last,), _ = encoder(images)
    torch.testing.assert_close(last.flatten(2).transpose(1, 2), expected, atol=1e-5, rtol=1e-5)
