"""Model folders: what is refused, and how."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.tester import make_model
from tiss.errors import TissError
from tiss.models import SegmentationModel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_model("vit_micro_patch8").save_pretrained(tmp_path / "saved", {"parent": "x"})
    return tmp_path / "saved"


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_files(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "background", "1": "cat", "2": "dog"}
    assert "cat, dog" in (folder / "README.md").read_text()


def test_rule_and_evaluation_mode_come_back(folder: Path) -> None:
    model = SegmentationModel.from_pretrained(folder)
    assert not model.training
    model.rule = "sigmoid"
    model.save_pretrained(folder, {"step": 1})
    again = SegmentationModel.from_pretrained(folder)
    assert again.rule == "sigmoid"
    assert again.record == {"parent": "x", "step": 1}


ARCHITECTURE = {"encoder": "vit_tiny_patch16_224", "decoder": "linear", "head": "linear", "image_size": 64}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": ARCHITECTURE}, "does not fit"),
        ({"architecture": ARCHITECTURE | {"image_size": 10**6}}, "does not fit"),
        (
            {"architecture": ARCHITECTURE | {"encoder": "vit_tinny_patch16_224"}},
            "did you mean 'vit_tiny_patch16_224'",
        ),
        ({"architecture": {"encoder": "vit_micro_patch8"}}, "architecture"),
        ({"architecture": ARCHITECTURE | {"image_size": -5}}, "at least 1"),
        ({"architecture": ARCHITECTURE | {"drop_path": 1.5}}, "drop_path"),
        ({"architecture": ARCHITECTURE | {"shell": "x"}}, "unknown key"),
        ({"classes": ["background", "cat", "cat"]}, "named twice"),
        ({"classes": "abc"}, "list of names"),
        ({"groups": [[1], [1]]}, "channels 1 to 2"),
        ({"groups": [1, 2]}, "list of lists"),
        ({"rule": "hardmax"}, "softmax or sigmoid"),
        ({"format": 99}, "format 99"),
        ({"model_type": "vit"}, "not a model folder"),
    ],
)
def test_bad_folder_is_one_line(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder, **changes)
    with pytest.raises(TissError, match=message) as caught:
        SegmentationModel.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TissError, match="no such model folder"):
        SegmentationModel.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(TissError, match="downloads are not allowed"):
        SegmentationModel.from_pretrained("someone/something", allow_download=False)


def test_loading_draws_no_random_number(folder: Path) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    SegmentationModel.from_pretrained(folder)
    assert torch.equal(torch.get_rng_state(), state)


def test_altered_weights_are_refused(folder: Path) -> None:
    """Same names, same shapes, another value: only the hash can tell."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(TissError, match="altered since it was saved"):
        SegmentationModel.from_pretrained(folder)
