"""The native vision transformer: the shared tester, timm's features, positions."""

import pytest
import torch

from tests.models.tester import make_model, pictures, timm_model
from tiss.errors import TissError
from tiss.models import ENCODERS, EncoderOptions
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


def test_unknown_block_is_one_line() -> None:
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
def test_features_equal_timm(name: str, side: int, patches: tuple[int, int]) -> None:
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
