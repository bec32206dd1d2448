"""Which images to label: the unsure and the new first, no duplicates, as a list and a contact sheet."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import tiss as package
from tests.user.story import Refused, Said
from tiss.engine.predictor import Predictor
from tiss.models import SegmentationModel
from tiss.user.suggest import COLUMNS, choose, look


def test_the_unsure_and_the_new_come_first():
    points = np.array([[0.0, 0], [0.001, 0], [10, 0], [0, 10], [10, 10]])
    unsure = np.array([0.9, 0.9, 0.5, 0.1, 0.8])
    order = [place for place, _ in choose(unsure, points, np.empty((0, 2)), 5)]
    assert sorted(order) in ([0, 2, 3, 4], [1, 2, 3, 4])  # one of the two that show the same
    assert order[-1] == 3 and order[0] in (0, 1, 4)
    labelled = [place for place, _ in choose(unsure, points, points[[0, 4]], 5)]
    assert labelled == [2, 3]  # what is labelled, or like it, is left out
    assert list(choose(unsure, points[[0] * 5], np.empty((0, 2)), 5))[1:] == []


def test_with_sigmoids_the_logit_of_the_background_means_nothing(story: Path):
    model = SegmentationModel.from_pretrained(story / "first")
    model.rule = "sigmoid"
    image = torch.randint(0, 255, (3, 32, 32), dtype=torch.uint8)
    found = []
    for bias in (0.0, 9.0):
        model.head.biases[0].data[0] = bias
        found.append(look(Predictor(model, 32), image))
    assert found[0][0] == found[1][0] and np.array_equal(found[0][1], found[1][1])


def test_a_list_and_a_contact_sheet(story: Path, tmp_path: Path, said: Said, refused: Refused):
    shots = tmp_path / "shots"
    shots.mkdir()
    names = []
    for path in sorted((story / "warehouse" / "images").iterdir())[:6]:
        image = Image.open(path)
        image.save(shots / path.name)
        image.point(lambda value: min(255, value + 1)).save(
            shots / f"again-{path.name}"
        )  # not quite the same
        names.append(path.stem)
    words = ["suggest", story / "first", shots, "--count", 50, "--device", "cpu", "--out", tmp_path / "out"]
    assert "uncertainty" in said(*words)
    listed = [Path(line) for line in (tmp_path / "out" / "list.txt").read_text().splitlines()]
    stems = [path.stem.removeprefix("again-") for path in listed]
    assert len(set(stems)) == len(stems) >= 4 and set(stems) <= set(names)
    with Image.open(tmp_path / "out" / "sheet.png") as sheet:
        assert sheet.width > COLUMNS * 200 and np.asarray(sheet).std() > 10
    assert "--out" in refused(*words)
    found = package.suggest(story / "first", str(shots), 2, labelled=str(listed[0]), device="cpu")
    assert len(found) == 2 and listed[0].stem.removeprefix("again-") not in {one.path.stem for one in found}
    assert all(0 < one.uncertainty <= 1 for one in found)
    assert "--count 0" in refused(*words[:3], "--count", 0, "--out", tmp_path / "none")
