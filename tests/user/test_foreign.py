"""A SegFormer of transformers: the same logits here, a background where it had none, and then a new class."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.user.story import QUICK, Refused, tiss
from tiss.errors import TissError
from tiss.evaluation.evaluate import slide_logits
from tiss.models import SegmentationModel
from tiss.models.timm_encoder import declare_torchvision_operators
from tiss.user.segformer import from_segformer

IMAGES = [
    torch.randint(0, 256, (3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(i))
    for i in range(3)
]


def make(folder: Path, names: list[str], spread: float = 1.0) -> Any:
    """A tiny random SegFormer saved by transformers."""
    transformers = pytest.importorskip("transformers")
    if torch.version.cuda is None:
        declare_torchvision_operators()
    configuration = transformers.SegformerConfig(
        hidden_sizes=[4, 4, 8, 8],
        depths=[1, 1, 1, 2],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=8,
        id2label=dict(enumerate(names)),
    )
    torch.manual_seed(0)
    model = transformers.SegformerForSemanticSegmentation(configuration).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=spread if "classifier" in name else 0.3)
    model.save_pretrained(folder)
    colours = {"image_mean": [0.4, 0.4, 0.4], "image_std": [0.2, 0.3, 0.2]}
    table = {"size": {"height": 64, "width": 64}} | colours
    (folder / "preprocessor_config.json").write_text(json.dumps(table))
    return model


def theirs(model: Any, image: torch.Tensor) -> torch.Tensor:
    mean, std = torch.tensor([0.4, 0.4, 0.4]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.2]).view(3, 1, 1)
    with torch.inference_mode():
        return model(((image / 255 - mean) / std)[None]).logits


def test_logits_equal_those_of_transformers_and_background_goes_first(tmp_path: Path):
    reference = make(tmp_path, ["road", "Background", "car"])
    model = from_segformer(tmp_path, IMAGES, device="cpu")
    assert model.classes == ["background", "road", "car"]
    expected = theirs(reference, IMAGES[0])[:, [1, 0, 2]]
    torch.testing.assert_close(model(IMAGES[0][None]).logits, expected, atol=1e-4, rtol=1e-4)


def test_added_background_has_the_median_probability_and_changes_nothing_else(tmp_path: Path):
    reference = make(tmp_path, ["road", "car", "sky"], spread=3.0)
    model = from_segformer(tmp_path, IMAGES, device="cpu")
    assert model.classes == ["background", "road", "car", "sky"]
    with torch.inference_mode():
        pixels = torch.cat([slide_logits(model, image[None], 64)[0].flatten(1) for image in IMAGES], 1)
    probability = pixels.softmax(dim=0)[0].median()
    assert math.isclose(float(probability), 0.01, rel_tol=1e-3)
    rows = reference.decode_head.classifier.weight[:, :, 0, 0]
    torch.testing.assert_close(model.head.rows[0][0], rows.mean(dim=0))
    assert (pixels.argmax(dim=0) > 0).float().mean() >= 0.99
    old = theirs(reference, IMAGES[0])
    torch.testing.assert_close(model(IMAGES[0][None]).logits[:, 1:], old, atol=1e-4, rtol=1e-4)


def test_refused_where_a_background_would_change_predictions(tmp_path: Path):
    """Rows that cancel: their mean is flat, while the classes' own logits swing from pixel to pixel."""
    model = make(tmp_path, ["road", "car"], spread=1000.0)
    with torch.no_grad():
        model.decode_head.classifier.weight[1] = -model.decode_head.classifier.weight[0]
        model.decode_head.classifier.bias.zero_()
    model.save_pretrained(tmp_path)
    with pytest.raises(TissError, match="no background class"):
        from_segformer(tmp_path, IMAGES, device="cpu")


def test_extend(story: Path, tmp_path: Path):
    make(tmp_path / "segformer", ["road", "car", "sky"], spread=3.0)
    command = ["extend", tmp_path / "segformer", "--data", story / "tonight", "--classes", "star"]
    tiss(*command, "--out", tmp_path / "out", *QUICK[2:], "--epochs", 1)
    model = SegmentationModel.from_pretrained(tmp_path / "out")
    assert model.classes == ["background", "road", "car", "sky", "star"]
    assert model.record["history"][0]["method"] == "mib"
    assert model.record["parent"]["path"] == "../segformer"


def test_another_shape_or_a_missing_part_is_one_line(story: Path, tmp_path: Path, refused: Refused):
    make(tmp_path / "s", ["road", "car"])
    path = tmp_path / "s" / "config.json"
    config = json.loads(path.read_text())
    command = ["extend", tmp_path / "s", "--data", story / "tonight", "--classes", "star"]
    for change, expected in (
        ({"depths": [3, 1, 1, 1]}, "another shape"),
        ({"id2label": {"0": "road", "5": "car"}}, "id2label"),
        ({"id2label": {"0": "road", "1": "road"}}, "'road' twice"),
        ({"id2label": {"0": "road", "1": "car", "2": "sky"}}, "one row for each"),
    ):
        path.write_text(json.dumps(config | change))
        assert expected in refused(*command, "--out", tmp_path / "o")
    path.write_text(json.dumps(config))
    weights = tmp_path / "s" / "model.safetensors"
    tensors = load_file(weights)
    for name in ("decode_head.linear_fuse.weight", "decode_head.classifier.bias"):
        save_file({key: tensor for key, tensor in tensors.items() if key != name}, weights)
        assert f"{name} is missing" in refused(*command, "--out", tmp_path / "o")
    save_file(tensors | {"decode_head.linear_fuse.weight": torch.zeros(8)}, weights)
    assert "other shapes" in refused(*command, "--out", tmp_path / "o")
    assert "transformers' format" in refused("predict", tmp_path / "s", story / "tonight" / "images")
