"""The whole story on drawn images: train, extend twice (the fixture), compare, predict, export, show."""

import json
import shutil
from pathlib import Path

import torch
from PIL import Image

from tests.report import fakes
from tests.user.story import change, tiss
from tiss.app.steps import open_steps
from tiss.data.images import read_image
from tiss.models import SegmentationModel
from tiss.user.model_source import write_card


def test_from_the_first_model_to_a_file_for_other_programs(story: Path, tmp_path: Path):
    first, third, shots = str(story / "first"), str(story / "third"), story / "tomorrow" / "images"
    out = tmp_path / "difference"
    tiss("compare", first, third, "--data", story / "tomorrow", "--out", out)
    kinds = {row["name"]: row["kind"] for row in json.loads((out / "report.json").read_text())["classes"]}
    assert kinds == {"background": "old", "disc": "old", "square": "old", "star": "new", "moon": "new"}
    tiss("predict", third, shots, "--out", tmp_path / "segmented")
    exported = tmp_path / "third.pt2"
    tiss("export", third, "--format", "torch", "--out", exported, "--data", shots)
    program = torch.export.load(exported).module()
    steps, old = open_steps(third, "cpu"), SegmentationModel.from_pretrained(story / "first")
    for path in sorted(shots.iterdir()):
        image = read_image(path)
        mask = torch.from_numpy(steps.mask(2, image))
        assert torch.equal(program(image[None])[0][0], mask)  # page, file and command say the same
        saved = Image.open(tmp_path / "segmented" / "masks" / path.name)
        assert saved.tobytes() == mask.numpy().tobytes()
        with torch.inference_mode():  # and an old step of the slider is the model of then
            expected = old.predict_labels(old(image[None]))[0]
        assert torch.equal(torch.from_numpy(steps.mask(0, image)).long(), expected)


def test_card_of_a_run_has_its_scores(story: Path, tmp_path: Path):
    model = SegmentationModel.from_pretrained(story / "third")
    results = fakes.results("mib")
    for step in results["steps"]:
        step["train_images"] = 7
    write_card(tmp_path, model, {}, "team/name", results)
    card = (tmp_path / "README.md").read_text()
    assert "shapes, task 4-2, overlapped, protocol paper, method mib, seed 0" in card
    value = results["steps"][2]["scores"]["all"]["with_background"]
    assert f"| 2 | moon | {value:.1f} |" in card


def test_a_parent_that_changed_ends_the_line(story: Path, tmp_path: Path):
    for name in ("first", "second", "third"):
        shutil.copytree(story / name, tmp_path / name)
    change(tmp_path / "first" / "model.safetensors")
    assert [open_steps(str(tmp_path / "third"), "cpu").title(0)] == ["step 0: + disc, square, star"]
