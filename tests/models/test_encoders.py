"""The native encoders: the features of the libraries whose weights they take, and rules of their own."""

import re
from pathlib import Path

import pytest
import torch

from tests.models.tester import make_model, pictures, timm_model
from tiss.errors import TissError
from tiss.models import DECODERS, ENCODERS, EncoderOptions, load_pretrained
from tiss.models.mit import MitSettings, MixTransformer
from tiss.models.vit import VisionTransformer, VitSettings, resize_positions


def test_needs_are_patch_tokens_in_reading_order() -> None:
    """Class and register tokens stay out of the maps, whose pixels lie where the patches lie."""
    settings = VitSettings(16, 2, 2, 8, 32, registers=3)
    encoder = VisionTransformer("test", settings, EncoderOptions()).eval()
    images = torch.randn(1, 3, 32, 16)
    _, (first,) = encoder(images, (0,))
    tokens = encoder.blocks[0](encoder.embed(images, (4, 2)))
    assert tokens.shape[1] == 4 + 8
    assert torch.equal(first[0, :, 3, 1], tokens[0, 4 + 7])


def test_the_last_block_comes_before_and_after_the_final_norm() -> None:
    encoder = make_model("vit_micro_patch8").encoder
    _, (before, after) = encoder(torch.randn(1, 3, 32, 32), ("before_norm", -1))
    assert not torch.allclose(before, after)
    torch.testing.assert_close(encoder.norm(before.movedim(1, 3)).movedim(3, 1), after)


def test_an_unknown_block_is_one_line() -> None:
    model = make_model("vit_micro_patch8")
    with pytest.raises(TissError, match="no feature 3: it has blocks 0 to 2"):
        model(pictures(1, 32, 32), (3,))
    with pytest.raises(TissError, match="no feature 'stage1'"):
        model(pictures(1, 32, 32), ("stage1",))


def test_positions_keep_a_constant_and_the_first_tokens() -> None:
    positions = torch.cat([torch.full((1, 1, 2), 7.0), torch.ones(1, 9, 2)], dim=1)
    resized = resize_positions(positions, (3, 3), (5, 4))
    assert resized.shape == (1, 21, 2)
    assert (resized[:, 0] == 7).all()
    torch.testing.assert_close(resized[:, 1:], torch.ones(1, 20, 2))


def test_checkpointing_changes_nothing() -> None:
    model = make_model("vit_micro_patch8")
    images = pictures(2, 32, 32)

    def gradient() -> torch.Tensor:
        model.zero_grad()
        model(images, (0,)).logits.square().sum().backward()
        assert model.encoder.patch_embed.proj.weight.grad is not None
        return model.encoder.patch_embed.proj.weight.grad.clone()

    plain = gradient()
    model.encoder.checkpointing = True
    torch.testing.assert_close(gradient(), plain)


def test_drop_path_only_in_training() -> None:
    torch.manual_seed(0)
    encoder = VisionTransformer("test", VitSettings(16, 3, 2, 8, 32), EncoderOptions(drop_path=0.9))
    images = torch.randn(1, 3, 32, 32)
    encoder.eval()
    assert torch.equal(encoder(images)[0][0], encoder(images)[0][0])
    encoder.train()
    assert any(not torch.equal(encoder(images)[0][0], encoder(images)[0][0]) for _ in range(5))


@pytest.mark.parametrize(
    ("name", "side", "patches"),
    [
        ("vit_small_patch16_224", 64, (4, 4)),
        ("vit_base_patch16_224", 64, (4, 4)),
        ("vit_small_patch14_dinov2", 70, (5, 5)),
        ("vit_small_patch14_reg4_dinov2", 70, (5, 5)),
        ("vit_tiny_patch16_224", 112, (6, 4)),
        ("vit_small_patch14_dinov2", 112, (6, 4)),
    ],
)
def test_vit_features_equal_timm(name: str, side: int, patches: tuple[int, int]) -> None:
    """Block by block and after the final norm, for the same weights; positions resized as timm resizes them."""
    reference = timm_model(name, img_size=side, dynamic_img_size=True)
    encoder = ENCODERS.get(name)(EncoderOptions(image_size=side)).eval()
    encoder.load_state_dict(encoder.convert_pretrained(dict(reference.state_dict())))
    images = torch.randn(1, 3, *(count * encoder.stride for count in patches))
    with torch.no_grad():
        expected = [*reference.forward_intermediates(images, intermediates_only=True)]
        final = reference.forward_features(images)[:, encoder.prefix :]
        (last,), features = encoder(images, tuple(range(12)))
    torch.testing.assert_close(last.flatten(2).transpose(1, 2), final, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(features[:-1], expected[:-1], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_segformer_features_equal_those_of_transformers(tmp_path: Path) -> None:
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


def test_older_names_of_segformer() -> None:
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


@pytest.mark.parametrize(("name", "stride"), [("resnet50", 16), ("resnet50_os8", 8), ("resnet50_v1_os8", 8)])
def test_output_stride(name: str, stride: int) -> None:
    """The last map has the stride that the name says, and strides given up have become dilations."""
    with torch.device("meta"):
        encoder = ENCODERS.get(name)(EncoderOptions()).eval()
        pyramid, _ = encoder(torch.zeros(1, 3, 64, 96))
    assert pyramid[-1].shape == (1, 2048, 64 // stride, 96 // stride)
    for maps, level in zip(pyramid, encoder.pyramid, strict=True):
        assert maps.shape[1:] == (level.channels, 64 // level.stride, 96 // level.stride)
    last = encoder.get_submodule("layer4.2.conv2")
    assert last.dilation == (32 // stride, 32 // stride)  # a 3×3 still spans what it spans at stride 32


def test_stage_features_are_before_the_activation() -> None:
    model = make_model("resnet_micro").eval()
    before, after = model(torch.full((1, 3, 32, 32), 99, dtype=torch.uint8), ("stage4", -1)).features
    assert (before < 0).any()
    assert torch.equal(before.relu(), after)


@pytest.mark.parametrize(("name", "rates"), [("resnet50", [6, 12, 18]), ("resnet50_os8", [12, 24, 36])])
def test_atrous_rates_reach_as_far_at_either_stride(name: str, rates: list[int]) -> None:
    with torch.device("meta"):
        encoder = ENCODERS.get(name)(EncoderOptions())
        decoder = DECODERS.get("deeplabv3")(encoder)
    convolutions = [branch[0] for branch in decoder.aspp.branches]
    assert [c.kernel_size for c in convolutions] == [(1, 1), (3, 3), (3, 3), (3, 3)]
    assert [c.dilation[0] for c in convolutions[1:]] == rates
    assert [rate * encoder.pyramid[-1].stride for rate in rates] == [96, 192, 288]


def test_batch_of_one_trains() -> None:
    model = make_model("resnet_micro", "deeplabv3").train()
    model(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).logits.sum().backward()


@pytest.mark.parametrize(("name", "stride"), [("resnet50", 16), ("resnet50_os8", 8)])
def test_resnet_features_equal_timm(name: str, stride: int) -> None:
    reference = timm_model("resnet50", output_stride=stride)
    encoder = ENCODERS.get(name)(EncoderOptions()).eval()
    encoder.load_state_dict(reference.state_dict())
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = reference.forward_intermediates(images, intermediates_only=True)[1:]
        pyramid, _ = encoder(images)
    for ours, theirs in zip(pyramid, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
