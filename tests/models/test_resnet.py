"""ResNet and DeepLab: the shared tester, timm's features, receptive strides."""

import pytest
import torch

from tests.models.tester import make_model, timm_model
from tiss.models import DECODERS, ENCODERS, EncoderOptions


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
def test_features_equal_timm(name: str, stride: int) -> None:
    reference = timm_model("resnet50", output_stride=stride)
    encoder = ENCODERS.get(name)(EncoderOptions()).eval()
    encoder.load_state_dict(reference.state_dict())
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = reference.forward_intermediates(images, intermediates_only=True)[1:]
        pyramid, _ = encoder(images)
    for ours, theirs in zip(pyramid, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
