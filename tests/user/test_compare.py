"""Two models side by side: the figures against a plain recomputation, with and without labels."""

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.user.story import Patch, Refused, Said, tiss
from tiss.engine.features import FeatureCache
from tiss.engine.predictor import Predictor
from tiss.models import SegmentationModel
from tiss.user.changes import ClassChange, Comparison, check_limits, describe, tables
from tiss.user.compare import Counter, ImageSet, compare_models, draw_worst
from tiss.user.predict import MARGIN, PANEL

SPACE = ("background", "disc", "square")


def no_image(index: int) -> tuple[torch.Tensor, None]:
    raise AssertionError(index)


def models(story: Path, *names: str) -> list[SegmentationModel]:
    return [SegmentationModel.from_pretrained(story / name).eval() for name in names]


def test_figures_equal_a_plain_recomputation(story: Path, said: Said):
    data = story / "tomorrow"
    found = json.loads(said("compare", story / "second", story / "third", "--data", data, "--json"))
    old, new = models(story, "second", "third")
    paths = sorted((data / "images").iterdir())
    label = np.stack([np.array(Image.open(data / "masks" / path.name)) for path in paths])
    one, two = (np.stack([Predictor(model, 32).predict(path).mask for path in paths]) for model in (old, new))
    counted = label != 255
    for row in found["classes"]:
        channel = new.classes.index(row["name"])
        for mask, value in ((one, row["before"]), (two, row["after"])):
            if value is not None:
                hit = ((mask == channel) & (label == channel)).sum()
                either = (((mask == channel) | (label == channel)) & counted).sum()
                assert value == pytest.approx(100 * hit / either)
        before = (one == channel) & (two != 4 if channel == 0 else True)  # what is a moon now is not lost
        for area, value in ((before, row["area_before"]), (two == channel, row["area_after"])):
            assert value is None or value == pytest.approx(100 * area.mean())
    assert found["pixels_as_before"] == pytest.approx(100 * (one == two)[label != 4].mean())


def test_a_page_for_images_without_labels(story: Path, tmp_path: Path):
    out = tmp_path / "difference"
    tiss("compare", story / "first", story / "third", "--data", story / "tonight" / "images", "--out", out)
    report = json.loads((out / "report.json").read_text())
    assert {row["before"] for row in report["classes"]} == {None}
    assert len(list(out.glob("worst-*.png"))) == len(report["worst"])
    page = (out / "report.html").read_text()
    assert "Area of the old classes" in page
    assert "IoU before" not in page  # no column of dashes
    assert "<script" not in page


def test_equal_models_agree_everywhere(story: Path, said: Said):
    found = json.loads(said("compare", *[story / "third"] * 2, "--data", story / "tomorrow", "--json"))
    assert found["pixels_as_before"] == 100
    assert found["worst"] == []
    assert all(row["change"] in (0, None) and row["area_change"] in (0, None) for row in found["classes"])


def counted(old: list[int], new: list[int], *classes: tuple[str, ...]) -> tuple[list, float | None]:
    counter = Counter(ImageSet(("x",), no_image, SPACE), *classes)
    counter.add(np.array([old]), np.array([new]), None)
    return counter.finish()


def test_a_class_that_shrinks_is_reported_without_any_label():
    """The second model calls nine of ten disc pixels background: no label is needed to see that."""
    old, new = [1] * 10 + [2] * 10 + [0] * 20, [1] + [0] * 9 + [2] * 10 + [0] * 20
    rows, same = counted(old, new, SPACE, SPACE)
    assert (rows[1].area_before, rows[1].area_after, rows[1].area_change) == (25, 2.5, pytest.approx(-90))
    result = Comparison(rows, 1, same, [], judged=False)
    assert describe(result)[-1] == result.warning and "disc (25.0 → 2.5 % of the pixels)" in result.warning
    assert tables(result)[-1][3] == {(1, 2): "worse", (1, 3): "worse"}
    assert not check_limits(result, {"area": -89.0})[0] and check_limits(result, {"area": -91.0})[0]
    assert not check_limits(result, {"old": -50.0})[0]  # not measured: no labels


@pytest.mark.parametrize(
    ("one", "first", "lost"),
    [
        (ClassChange("disc", before=60.0, after=56.0), False, ["disc"]),
        (ClassChange("disc", before=60.0, after=57.5), False, []),
        (ClassChange("background", before=90.0, after=82.0), True, []),
        (ClassChange("background", before=90.0, after=79.0), True, ["background"]),
        (ClassChange("background", agreement=1.3), True, ["background"]),
        (ClassChange("background", agreement=92.0), True, []),
        (ClassChange("disc", area_before=0.2, area_after=0.1), False, ["disc"]),
        (ClassChange("disc", area_before=0.04, area_after=0.0), False, []),  # both are shown as 0.0
        (ClassChange("star", "new", after=3.0), False, []),
    ],
)
def test_what_is_worth_a_warning(one: ClassChange, first: bool, lost: list[str]):
    classes = [one] if first else [ClassChange("background"), one]
    result = Comparison(classes, 1, None, [], judged=False)
    assert list(result.losses) == lost and bool(result.warning) == bool(lost)
    assert len(result.to_json()["warnings"]) == len(lost)


def destroy(folder: Path, name: str) -> SegmentationModel:
    """The model with a class that it never predicts."""
    model = SegmentationModel.from_pretrained(folder)
    with torch.no_grad():
        model.head.biases[0][model.classes.index(name)] = -1e4
    return model


def test_a_destroyed_class_fails_in_one_line(story: Path, tmp_path: Path, said: Said):
    destroy(story / "first", "disc").save_pretrained(tmp_path / "worse")
    command = ["compare", story / "first", tmp_path / "worse", "--data", story / "warehouse"]
    text = said(*command, "--out", tmp_path / "page", "--fail-below", "old:-1.0,area:-5", code=1)
    (warning,) = (line for line in text.splitlines() if line.startswith("warning: "))
    assert re.search(r"disc \([\d.]+ → 0\.0 % of the pixels, IoU [\d.]+ → 0\.0\)", warning)
    assert text.splitlines()[-1].startswith("failed: old ")
    report = json.loads((tmp_path / "page" / "report.json").read_text())
    assert report["warnings"][0].startswith("disc: ")
    assert 'class="lead bad">disc' in (tmp_path / "page" / "report.html").read_text()
    same = ["compare", story / "first", story / "first", "--data", story / "warehouse"]
    assert "passed: old " in said(*same, "--fail-below", "old:-1.0", "--images", story / "tonight" / "images")


@pytest.mark.parametrize(
    ("old", "new", "shrinks"),
    [
        ([1] * 100, [1] * 96 + [0] * 4, []),  # a little
        ([0] * 100, [0] * 10 + [2] * 90, []),  # the background becomes a new class
        ([0] * 100, [0] * 10 + [1] * 90, ["background"]),  # the background becomes an old class
        ([1] * 100, [1] * 10 + [2] * 90, ["disc"]),  # an old class becomes a new one
    ],
)
def test_what_counts_as_shrinking(old: list[int], new: list[int], shrinks: list[str]):
    assert [row.name for row in counted(old, new, SPACE[:2], SPACE)[0] if row.shrinks] == shrinks


def test_classes_are_matched_by_name_not_by_number():
    """The same maps under swapped names agree nowhere but on the background."""
    rows, same = counted([0, 1, 2], [0, 1, 2], ("background", "square", "disc"), SPACE)
    assert [row.agreement for row in rows] == [100, 0, 0]
    assert same == pytest.approx(100 / 3)


def test_a_class_has_one_colour_in_both_models(story: Path):
    """A model with the classes in another order is drawn in the colours of their names."""
    (model,) = models(story, "first")
    (swapped,) = models(story, "first")
    swapped.classes = ["background", "square", "disc"]
    with torch.no_grad():
        swapped.head.rows[0].copy_(model.head.rows[0][[0, 2, 1]])
        swapped.head.biases[0].copy_(model.head.biases[0][[0, 2, 1]])
    path = sorted((story / "warehouse" / "images").iterdir())[0]
    pixels = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)
    images = ImageSet(("a",), lambda _: (pixels, None), tuple(model.classes))
    old, new = Predictor(swapped, 32), Predictor(model, 32)
    result = compare_models(old, new, images)
    assert result.same == 100
    result.worst.append(("a", 100.0))
    drawn = np.asarray(draw_worst(result, images, old, new)[0][1])
    width = PANEL + MARGIN
    assert np.array_equal(drawn[20:, width : width + PANEL], drawn[20:, 2 * width : 2 * width + PANEL])


def test_bad_input(story: Path, tmp_path: Path, refused: Refused):
    command = ["compare", story / "first", story / "third"]
    assert "--data missing" in refused(*command)
    assert "no images there" in refused(*command, "--data", tmp_path)
    assert "--size 3" in refused(*command, "--data", story / "tonight", "--size", 3)
    for limits, expected in (("oldest:1", "'old'"), ("old", "--fail_below old: give a number")):
        assert expected in refused(*command, "--data", story / "tonight", "--fail-below", limits)


@pytest.mark.parametrize("frozen", [True, False])
def test_features_of_a_frozen_encoder_are_computed_once(story: Path, frozen: bool):
    (model,) = models(story, "first")
    old, new = Predictor(model, 32), Predictor(copy.deepcopy(model), 32)
    if not frozen:
        next(new.model.body.parameters()).data += 0.5
    for predictor in (old, new):
        predictor.model.head.biases[0].data += torch.randn(len(model.head.biases[0]))
    calls: list[int] = []
    for predictor in (old, new):
        predictor.model.body.encoder.register_forward_hook(lambda *_: calls.append(1))
    image = torch.randint(0, 255, (3, 32, 32), dtype=torch.uint8)
    apart = [predictor.one(image) for predictor in (old, new)]
    calls.clear()
    with FeatureCache().of(old.model, new.model):
        together = [predictor.one(image) for predictor in (old, new)]
    assert all(map(torch.equal, apart, together))
    assert len(calls) == (1 if frozen else 2)
    new.one(image)
    assert len(calls) == (2 if frozen else 3), "only while it lasts"


def test_a_first_model_sees_each_image_once(story: Path, monkeypatch: Patch):
    seen = []
    plain = Predictor.one
    monkeypatch.setattr(Predictor, "one", lambda self, image: seen.append(1) or plain(self, image))
    predictor = Predictor(*models(story, "first"), 32)
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    images = ImageSet(("a", "b"), lambda _: (image, None), predictor.classes)
    assert {one.kind for one in compare_models(None, predictor, images).classes} == {"new"}
    assert len(seen) == 2
