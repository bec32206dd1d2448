"""One tester that every architecture passes."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tiss.config import ModelConfig
from tiss.models import Output, SegmentationModel, build_model
from tiss.models.timm_encoder import import_timm, knows

CLASSES = ["background", "cat", "dog"]


def make_model(encoder: str, decoder: str | None = None, crop: int = 64) -> SegmentationModel:
    return build_model(ModelConfig(encoder=encoder, decoder=decoder), CLASSES, crop)


def pictures(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)


def timm_model(name: str, **settings: object) -> nn.Module:
    """A network of timm without classifier, its weights and statistics as trained ones: away from ones and zeros."""
    if not knows(name):
        pytest.skip("timm is not installed")
    torch.manual_seed(0)
    model: nn.Module = import_timm().create_model(name, num_classes=0, **settings).eval()
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor += 0.02 * torch.rand_like(tensor)
    return model


def check_architecture(encoder: str, decoder: str | None, folder: Path, crop: int = 64) -> SegmentationModel:
    """Everything that the engine and the methods take for granted of a model."""
    model = make_model(encoder, decoder, crop)
    check_gradients(model, crop)
    model.eval()
    check_shapes(model)
    check_features(model, crop)
    check_growth(model, crop)
    check_saved(model, folder / "model", crop)
    check_export(model, crop)
    return model


def check_gradients(model: SegmentationModel, crop: int) -> None:
    """Every parameter takes part: processes that share gradients wait for each of them."""
    model.train()
    model.zero_grad()
    model(pictures(2, crop, crop)).logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    model.zero_grad()


def check_shapes(model: SegmentationModel) -> None:
    """Any size, a batch of one, uint8 and float alike."""
    for height, width in ((64, 64), (37, 90), (65, 33)):
        images = pictures(1, height, width)
        output = model(images)
        stride = model.encoder.stride
        padded = (-(-height // stride) * stride, -(-width // stride) * stride)
        assert output.resolution.padded == padded
        assert output.logits.shape[:2] == (1, len(model.classes))
        assert output.logits.shape[2] * model.decoder.stride == padded[0]
        assert output.pixels().shape == (1, len(model.classes), height, width)
        labels = model.predict_labels(output)
        assert labels.shape == (1, height, width)
        assert labels.dtype == torch.int64
        torch.testing.assert_close(model(images.float()).logits, output.logits)


def check_features(model: SegmentationModel, crop: int) -> None:
    """Each need gives a map N × D × h × w, and asking changes no logit."""
    encoder, images = model.encoder, pictures(2, crop, crop)
    needs = (*range(encoder.depth), *encoder.named_needs, "decoder")
    output = model(images, needs)
    assert len(output.features) == len(needs)
    assert all(feature.ndim == 4 and len(feature) == 2 for feature in output.features)
    torch.testing.assert_close(output.logits, model(images).logits)
    torch.testing.assert_close(model(images, (-1,)).features[0], output.features[encoder.depth - 1])
    assert output.features[encoder.depth - 1].shape[1] == encoder.channels
    assert output.features[-1].shape[1] == model.decoder.channels
    assert model(images, encoder.pod_needs).features
    if encoder.contrast_blocks:
        first, last = model(images, encoder.contrast_blocks).features
        assert first.shape == last.shape
        assert not torch.equal(first, last)


def check_growth(model: SegmentationModel, crop: int) -> None:
    """Grown from the background: b and the new classes share p(b), no old class moves."""
    images = pictures(2, crop, crop)
    before = model(images).logits.softmax(1)
    model.grow(["horse", "cow"], "background")
    model.grow(["sheep"], "background")
    after = model(images).logits.softmax(1)
    assert after.shape[1] == 6
    torch.testing.assert_close(after[:, [0, 3, 4, 5]].sum(1), before[:, 0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(after[:, 1:3], before[:, 1:3], atol=1e-5, rtol=1e-4)
    model.grow(["bird"], "random", seed=1)
    assert model(images).logits.shape[1] == 7
    assert model.classes[-4:] == ["horse", "cow", "sheep", "bird"]
    assert model.groups == [[1, 2], [3, 4], [5], [6]]


def check_saved(model: SegmentationModel, folder: Path, crop: int) -> None:
    """Saved and loaded: the same logits to the last bit, the same classes and groups."""
    images = pictures(1, crop, crop)
    model.save_pretrained(folder, {"step": 3})
    loaded = SegmentationModel.from_pretrained(folder)
    assert torch.equal(loaded(images).logits, model(images).logits)
    assert (loaded.classes, loaded.groups, loaded.rule) == (model.classes, model.groups, model.rule)
    assert loaded.architecture == model.architecture
    assert loaded.record["step"] == 3


class Pixels(nn.Module):
    """A model as an export sees it: pictures in, logits of pixels out."""

    def __init__(self, model: SegmentationModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        output: Output = self.model(images)
        return output.pixels()


def check_export(model: SegmentationModel, crop: int) -> None:
    """The whole forward pass traces into one graph, with a free batch size."""
    wrapped = Pixels(copy.deepcopy(model)).eval()
    images = pictures(2, crop, crop)
    batch = torch.export.Dim("batch", min=1, max=64)
    with torch.no_grad():
        program = torch.export.export(wrapped, (images,), dynamic_shapes=({0: batch},))
        for count in (1, 3):
            more = pictures(count, crop, crop, seed=count)
            torch.testing.assert_close(program.module()(more), wrapped(more))
