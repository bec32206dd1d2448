"""The whole story on drawn pictures: train, extend twice (the fixture), compare, predict, export, look at it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.report import fakes
from tiss.app.stations import open_stations, picture_key
from tiss.cli.main import main
from tiss.data.images import read_image
from tiss.models import SegmentationModel
from tiss.user.card import make_card


def test_from_the_first_model_to_a_file_for_other_programs(story: Path, tmp_path: Path) -> None:
    first, third, shots = str(story / "first"), str(story / "third"), story / "tomorrow" / "images"
    assert (
        main(
            [
                "compare",
                first,
                third,
                "--data",
                str(story / "tomorrow"),
                "--out",
                str(tmp_path / "difference"),
            ]
        )
        == 0
    )
    kinds = {
        row["name"]: row["kind"]
        for row in json.loads((tmp_path / "difference" / "report.json").read_text())["classes"]
    }
    assert kinds == {"background": "old", "disc": "old", "square": "old", "star": "new", "moon": "new"}
    assert main(["predict", third, str(shots), "--out", str(tmp_path / "segmented")]) == 0
    exported = tmp_path / "third.pt2"
    assert main(["export", third, "--format", "torch", "--out", str(exported), "--data", str(shots)]) == 0
    program = torch.export.load(exported).module()
    stations = open_stations(third, "cpu")
    for path in sorted(shots.iterdir()):
        image = read_image(path)
        mask = torch.from_numpy(stations.mask(2, image, picture_key(image)))
        assert torch.equal(
            program(image[None])[0][0], mask
        )  # the page, the file and the command say the same
        saved = Image.open(tmp_path / "segmented" / "masks" / path.name)
        assert saved.tobytes() == mask.numpy().tobytes()


def test_the_last_word_of_the_first_model_is_kept(story: Path) -> None:
    """An old step of the slider is the very model of then."""
    stations = open_stations(str(story / "third"), "cpu")
    old = SegmentationModel.from_pretrained(story / "first")
    image = read_image(sorted((story / "warehouse" / "images").iterdir())[0])
    with torch.inference_mode():
        expected = old.predict_labels(old(image[None]))[0]
    assert torch.equal(torch.from_numpy(stations.mask(0, image, picture_key(image))).long(), expected)


def test_card_of_a_run_has_its_scores(story: Path) -> None:
    model = SegmentationModel.from_pretrained(story / "third")
    results = fakes.results("mib")
    for step in results["steps"]:
        step["train_images"] = 7
    card = make_card(model, {}, "team/name", results)
    assert "shapes, task 4-2, overlapped, protocol paper, method mib, seed 0" in card
    value = results["steps"][2]["scores"]["all"]["with_background"]
    assert f"| 2 | moon | {value:.1f} |" in card


def test_a_parent_that_changed_ends_the_line(
    story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    for name in ("first", "second", "third"):
        shutil.copytree(story / name, tmp_path / name)
    path = tmp_path / "first" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert [open_stations(str(tmp_path / "third"), "cpu").title(0)] == ["step 0: + disc, square, star"]
