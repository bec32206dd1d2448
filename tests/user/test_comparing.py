"""Two models side by side: the figures against a plain recomputation, with and without labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.user.test_learning import refused
from tiss.cli.main import main
from tiss.engine.prediction import predict_image
from tiss.models import SegmentationModel
from tiss.user.comparison import Counter, Material, compare_models
from tiss.user.segment import Segmenter


def test_iou_and_agreement_equal_a_plain_recomputation(
    story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    command = [
        "compare",
        str(story / "second"),
        str(story / "third"),
        "--data",
        str(story / "tomorrow"),
        "--json",
    ]
    assert main([*command, "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    old, new = (SegmentationModel.from_pretrained(story / name) for name in ("second", "third"))
    truth, before, after = [], [], []
    for path in sorted((story / "tomorrow" / "images").iterdir()):
        truth.append(np.array(Image.open(story / "tomorrow" / "masks" / path.name)))
        before.append(predict_image(old, path, size=32).mask)
        after.append(predict_image(new, path, size=32).mask)
    label, one, two = (np.stack(part) for part in (truth, before, after))
    counted = label != 255
    for row in found["classes"]:
        channel = new.classes.index(row["name"])
        for mask, value in ((one, row["before"]), (two, row["after"])):
            if value is not None:
                hit = ((mask == channel) & (label == channel)).sum()
                either = (((mask == channel) | (label == channel)) & counted).sum()
                assert value == pytest.approx(100 * hit / either)
    kept = label != 4
    assert found["pixels_as_before"] == pytest.approx(100 * (one == two)[kept].mean())


def test_pictures_without_labels_and_the_page(
    story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "difference"
    images = str(story / "tonight" / "images")
    assert (
        main(["compare", str(story / "first"), str(story / "third"), "--data", images, "--out", str(out)])
        == 0
    )
    text = capsys.readouterr().out
    assert "agreement with the old model's own predictions" in text
    report = json.loads((out / "report.json").read_text())
    assert {row["before"] for row in report["classes"]} == {None}
    assert len(list(out.glob("worst-*.png"))) == len(report["worst"])
    assert "<script" not in (out / "report.html").read_text()


def test_equal_models_agree_everywhere(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    model = str(story / "third")
    assert main(["compare", model, model, "--data", str(story / "tomorrow"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pixels_as_before"] == 100
    assert found["worst"] == []
    assert all(row["change"] in (0, None) for row in found["classes"])


def test_classes_are_matched_by_name_not_by_number(story: Path) -> None:
    """The same maps under swapped names agree nowhere but on the background."""
    first = SegmentationModel.from_pretrained(story / "first")
    swapped = SegmentationModel.from_pretrained(story / "first")
    swapped.classes = ["background", "square", "disc"]
    material = Material(("x",), lambda _: None, ("background", "disc", "square"))  # type: ignore[arg-type, return-value]
    counter = Counter(material, Segmenter(swapped, 32), Segmenter(first, 32))
    counter.add(np.array([[0, 1, 2]]), np.array([[0, 1, 2]]), None)
    rows, same = counter.finish(swapped.classes, first.classes)
    assert [row.agreement for row in rows] == [100, 0, 0]
    assert same == pytest.approx(100 / 3)


def test_unlabelled_background_is_not_scored(story: Path) -> None:
    """Where only some classes are labelled, label 0 may hide an old class: no IoU for the background."""
    report = json.loads((story / "second" / "report.json").read_text())
    assert report["classes"][0]["after"] is None


def test_bad_input(story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = [str(story / "first"), str(story / "third")]
    assert "two models and --data" in refused(["compare", *models], capsys)
    (tmp_path / "empty").mkdir()
    assert "no pictures there" in refused(["compare", *models, "--data", str(tmp_path / "empty")], capsys)


def test_a_first_model_looks_at_each_picture_once(story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    plain = Segmenter.one
    monkeypatch.setattr(Segmenter, "one", lambda self, image: looked.append(1) or plain(self, image))
    model = Segmenter(SegmentationModel.from_pretrained(story / "first").eval(), 32)
    material = Material(
        ("a", "b"), lambda _: (torch.zeros(3, 32, 32, dtype=torch.uint8), None), tuple(model.model.classes)
    )
    assert compare_models(model, model, material).same == 100
    assert len(looked) == 2
