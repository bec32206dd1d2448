"""Pretrained weights: strict, from every kind of source, with errors that list what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.tester import CLASSES, make_model
from tiss.config import ModelConfig
from tiss.errors import TissError
from tiss.files import write_tensors
from tiss.models import EncoderOptions, SegmentationModel, build_model, load_pretrained
from tiss.models.pretrained import fetch
from tiss.models.vit import VisionTransformer, VitSettings, resize_positions

MICRO = "vit_micro_patch8"


def load(
    source: Path | str, encoder: str = MICRO, crop: int = 32, allow_pickle: bool = False
) -> SegmentationModel:
    config = ModelConfig(encoder=encoder, pretrained=str(source), allow_pickle=allow_pickle)
    return build_model(config, CLASSES, crop)


@pytest.fixture
def trained() -> SegmentationModel:
    """A model unlike any fresh one."""
    return build_model(ModelConfig(encoder=MICRO), CLASSES, 32, seed=7)


def same_encoder(first: SegmentationModel, second: SegmentationModel) -> bool:
    ours, theirs = first.encoder.state_dict(), second.encoder.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_file_with_classifier(trained: SegmentationModel, tmp_path: Path) -> None:
    tensors = dict(trained.encoder.state_dict()) | {
        "head.weight": torch.ones(9, 16),
        "head.bias": torch.ones(9),
    }
    write_tensors(tmp_path / "vit.safetensors", tensors)
    assert not same_encoder(trained, make_model(MICRO, crop=32))
    assert same_encoder(trained, load(tmp_path / "vit.safetensors"))


def test_model_folder_gives_its_encoder(trained: SegmentationModel, tmp_path: Path) -> None:
    trained.grow(["horse"], "background")
    trained.save_pretrained(tmp_path / "model")
    assert same_encoder(trained, load(tmp_path / "model"))


def test_positions_are_resized(trained: SegmentationModel, tmp_path: Path) -> None:
    write_tensors(tmp_path / "vit.safetensors", trained.encoder.state_dict())
    model = load(tmp_path / "vit.safetensors", crop=48)
    expected = resize_positions(trained.encoder.pos_embed, (4, 4), (6, 6))
    assert torch.equal(model.encoder.pos_embed, expected)


def test_difference_is_listed(trained: SegmentationModel, tmp_path: Path) -> None:
    tensors = dict(trained.encoder.state_dict())
    tensors["blocks.0.ls1.gamma"] = tensors.pop("norm.weight")
    tensors["cls_token"] = torch.zeros(1, 1, 8)
    write_tensors(tmp_path / "vit.safetensors", tensors)
    with pytest.raises(TissError) as caught:
        load(tmp_path / "vit.safetensors")
    message = str(caught.value)
    assert "missing 1: norm.weight" in message
    assert "unexpected 1: blocks.0.ls1.gamma" in message
    assert "cls_token is 1×1×8 instead of 1×1×16" in message
    assert "\n" not in message


def test_pickle_needs_trust(trained: SegmentationModel, tmp_path: Path) -> None:
    path = tmp_path / "vit.pth"
    torch.save({"model": trained.encoder.state_dict(), "epoch": 3}, path)
    with pytest.raises(TissError, match="allow_pickle"):
        load(path)
    assert same_encoder(trained, load(path, allow_pickle=True))


def test_hub_name(trained: SegmentationModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository with timm's configuration: its weights, and its mean and deviation."""
    write_tensors(tmp_path / "model.safetensors", trained.encoder.state_dict())
    config = {"pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("tiss.models.pretrained.fetch", lambda name, files: tmp_path)
    model = load("someone/vit_micro")
    assert same_encoder(trained, model)
    assert model.body.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert model.body.std.flatten().tolist() == pytest.approx([0.4, 0.5, 0.6])


def test_no_network_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> str:
        raise OSError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(TissError, match="no route; without a network"):
        fetch("someone/something", ["config.json"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.safetensors", "no such file"),
        ("default", "no published weights"),
        ("/a/b/c", "no such file"),
        (".", "holds no weights"),
    ],
)
def test_bad_source_is_one_line(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TissError, match=message):
        load(source)


SHAPE: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SHAPE |= {"image_size": 32, "patch_size": 8, "layer_norm_eps": 1e-6}


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
def test_vit_features_equal_those_of_transformers(
    kind: str, more: dict[str, Any], settings: VitSettings, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
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


def small_vit(registers: int, class_position: bool) -> VisionTransformer:
    settings = VitSettings(
        16, 2, 2, 8, 32, registers=registers, class_position=class_position, layer_scale=1.0
    )
    return VisionTransformer("test", settings, EncoderOptions())


def test_dinov2_files_with_registers() -> None:
    """DINOv2's own files: a mask token to leave out, a position of the class token to add in."""
    published, encoder = small_vit(3, True).eval(), small_vit(3, False).eval()
    tensors = dict(published.state_dict()) | {"mask_token": torch.zeros(1, 16)}
    tensors["register_tokens"] = tensors.pop("reg_token")
    encoder.load_state_dict(encoder.convert_pretrained(tensors))
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(encoder(images)[0][0], published(images)[0][0])
