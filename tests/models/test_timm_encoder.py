"""Swin and other encoders of timm: the shared tester, and timm's own features."""

import sys
from pathlib import Path

import pytest
import torch

from tests.models.tester import check_architecture
from tiss.errors import TissError
from tiss.files import write_tensors
from tiss.models import ENCODERS, EncoderOptions, list_encoders, load_pretrained, make_encoder, outline
from tiss.models.timm_encoder import import_timm, knows

if not knows("resnet18"):
    pytest.skip("timm is not installed", allow_module_level=True)


def test_swin_features_equal_timm() -> None:
    encoder = ENCODERS.get("swin_micro")(EncoderOptions(image_size=64)).eval()
    images = torch.randn(2, 3, 64, 96)
    final, stages = encoder.network.forward_intermediates(images, output_fmt="NCHW")
    pyramid, features = encoder(images, encoder.pod_needs)
    for ours, theirs in zip(pyramid[:-1], stages[:-1], strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(pyramid[-1], final.permute(0, 3, 1, 2))
    torch.testing.assert_close(features[0], stages[0])


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224"])
def test_swin_loads_published_names_at_any_crop(name: str) -> None:
    """A published file fits whatever the crop: tables of relative positions keep their shapes."""
    published = make_encoder(name, EncoderOptions()).state_dict()
    with torch.device("meta"):
        for crop in (64, 512):
            shapes = {
                key: value.shape
                for key, value in make_encoder(name, EncoderOptions(crop)).state_dict().items()
            }
            assert shapes == {key: value.shape for key, value in published.items()}


@pytest.mark.parametrize("name", ["convnext_atto", "vit_tiny_r_s16_p8_224"])
def test_any_encoder_of_timm(name: str) -> None:
    encoder = make_encoder(name, EncoderOptions(image_size=64)).eval()
    images = torch.randn(1, 3, 64, 64)
    pyramid, features = encoder(images, (0, -1))
    assert [tuple(maps.shape[1:]) for maps in pyramid] == [
        (level.channels, 64 // level.stride, 64 // level.stride) for level in encoder.pyramid
    ]
    torch.testing.assert_close(features[-1], pyramid[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convnext_atto", "pvt_v2_b0", "eva02_tiny_patch14_224", "regnetx_002"])
def test_any_encoder_of_timm_is_whole(name: str, tmp_path: Path) -> None:
    check_architecture(name, None, tmp_path, crop=56 if "patch14" in name else 64)


@pytest.mark.parametrize("name", ["convnext_atto", "swin_tiny_patch4_window7_224", "eva02_tiny_patch14_224"])
def test_published_files_load_strictly(name: str, tmp_path: Path) -> None:
    """A file as timm publishes it, classifier and all, gives timm's features."""
    torch.manual_seed(0)
    published = import_timm().create_model(name, num_classes=3).eval()
    write_tensors(tmp_path / "model.safetensors", published.state_dict())
    encoder = make_encoder(name, EncoderOptions()).eval()
    load_pretrained(encoder, str(tmp_path / "model.safetensors"))
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        expected = published.forward_intermediates(images, intermediates_only=True, output_fmt="NCHW")
        (first,) = encoder(images, (0 if name != "swin_tiny_patch4_window7_224" else 1,))[1]
    torch.testing.assert_close(first, expected[0])


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its encoders are left out of the list, and asking for one says what to install."""
    monkeypatch.setitem(sys.modules, "timm", None)
    import_timm.cache_clear()
    try:
        names = [info.name for info in list_encoders()]
        assert "swin_micro" not in names
        assert {"vit_small_patch16_384", "mit_b0", "resnet50", "resnet101_os8"} <= set(names)
        with pytest.raises(TissError, match=r"pip install 'tiss\[timm\]'"):
            make_encoder("swin_micro", EncoderOptions())
    finally:
        import_timm.cache_clear()


def test_family_and_defaults() -> None:
    assert outline("swin_micro").family == "hierarchical"
    assert outline("convnext_atto").family == "cnn"
    assert outline("convnext_atto").default_decoder == "deeplabv3"


def test_unknown_name_suggests() -> None:
    with pytest.raises(TissError, match="did you mean 'swin_tiny_patch4_window7_224'"):
        make_encoder("swin_tiny_patch4_window7_225", EncoderOptions())
