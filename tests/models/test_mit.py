"""SegFormer: the shared tester, transformers' features for the same weights, the hub's older names."""

import re
from pathlib import Path

import pytest
import torch

from tiss.models import EncoderOptions, load_pretrained
from tiss.models.mit import MitSettings, MixTransformer


def test_features_equal_those_of_transformers(tmp_path: Path) -> None:
    """A file as transformers writes it, classifier and all, loads strictly and gives its features."""
    transformers = pytest.importorskip("transformers")
    settings = MitSettings((8, 16, 20, 32), (1, 2, 1, 2), 8, heads=(1, 2, 5, 8))
    configuration = transformers.SegformerConfig(hidden_sizes=[8, 16, 20, 32], depths=[1, 2, 1, 2])
    torch.manual_seed(0)
    reference = transformers.SegformerForImageClassification(configuration).eval()
    for parameter in reference.parameters():  # as trained ones: away from ones and zeros
        torch.nn.init.normal_(parameter, std=0.2)
    encoder = MixTransformer("test", settings, EncoderOptions()).eval()
    reference.save_pretrained(tmp_path)
    load_pretrained(encoder, str(tmp_path))
    images = torch.randn(2, 3, 64, 96)
    expected = reference(images, output_hidden_states=True).hidden_states
    pyramid, _ = encoder(images)
    for ours, theirs in zip(pyramid, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_older_names() -> None:
    """The names in the hub's files, made here from the current ones, come back as the current ones."""
    encoder = MixTransformer(
        "test", MitSettings((4, 4, 8, 8), (1, 1, 1, 2), 8, (1, 1, 2, 2)), EncoderOptions()
    )
    current = dict(encoder.state_dict())
    older = {to_older(name): tensor for name, tensor in current.items()}
    assert "encoder.block.0.0.attention.self.sr.weight" in older
    assert "encoder.block.3.1.mlp.dense1.bias" in older
    assert encoder.convert_pretrained(older).keys() == current.keys()


def to_older(name: str) -> str:
    for pattern, replacement in (
        (r"sequence_reduction\.sequence_reduction", "self.sr"),
        (r"sequence_reduction\.layer_norm", "self.layer_norm"),
        (r"attention\.q_proj", "attention.self.query"),
        (r"attention\.k_proj", "attention.self.key"),
        (r"attention\.v_proj", "attention.self.value"),
        (r"attention\.o_proj", "attention.output.dense"),
        (r"layernorm_before", "layer_norm_1"),
        (r"layernorm_after", "layer_norm_2"),
        (r"mlp\.fc", "mlp.dense"),
        (r"stages\.(\d)\.blocks", r"encoder.block.\1"),
        (r"stages\.(\d)\.(patch_embeddings|layer_norm)", r"encoder.\2.\1"),
    ):
        name = re.sub(pattern, replacement, name)
    return name
