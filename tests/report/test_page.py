"""The page: self-contained, honest, and with its story on top."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2 import UndefinedError
from PIL import Image

from tests.report.fakes import Checker, folder, results, sort
from tiss.data.base import DATASETS
from tiss.palette import class_colours
from tiss.report.pages import story, write_report
from tiss.report.render import embed, render


def test_page_stands_alone_and_is_escaped(tmp_path: Path):
    runs = [folder(tmp_path, results(method), weight="<&>") for method in ("ft", "tiss", "offline")]
    with (runs[0] / "config.yaml").open("a") as file:
        file.write("data: {name: shapes, resize: 96, crop: 64}\n")
    page = write_report(runs, tmp_path / "deep" / "report.html", title="A <title>", images=4)
    text = page.read_text()
    Checker(text)
    assert "A &lt;title&gt;" in text and "&lt;&amp;&gt;" in text
    assert re.search(r'<td class="best">\d', text) and re.search(r'<td class="second">\d', text)
    assert "resized to 96, crops of 64" in text
    assert "step folders" in text  # why there are no similarities
    loaded = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(link.startswith(("data:", "#")) for link in loaded)
    assert "@import" not in text and "url(http" not in text
    assert len(text) < 300_000
    assert "prefers-color-scheme: dark" in text
    assert str(tmp_path) not in text.replace(f"out: {tmp_path}", "")
    two = write_report([results("ft"), results("ft", task="6-2")], tmp_path / "two.html").read_text()
    assert two.count("<section>") == 2


def test_a_name_that_a_template_lacks_is_an_error():
    with pytest.raises(UndefinedError, match="title"):
        render("base.html")


def test_predictions_and_features_have_a_row_per_method_and_a_column_per_step(
    model_runs: list[Path], tmp_path: Path
):
    text = write_report(model_runs, tmp_path / "report.html", gallery=1).read_text()
    assert Checker(text).tags.count("img") == 4 + (2 + 3 + 1) + (1 + 3)  # story, predictions, features
    assert text.count("<td></td>") == 2  # offline has one step
    assert "rgb(230,159,0)" in text
    bare = write_report(model_runs, tmp_path / "bare.html", gallery=0).read_text()
    assert "<img" not in bare and "Feature maps" not in bare


def test_the_paper_s_tables_are_folded_under_their_captions(tmp_path: Path):
    names = ("background", *DATASETS.get("ade20k").classes)
    groups = (tuple(range(1, 101)), tuple(range(101, 151)))
    values = results(groups=groups, classes=names, data="ade20k", task="100-50", setup="disjoint")
    text = write_report([values], tmp_path / "page.html").read_text()
    folded = re.findall(r"<summary>(ADE.*?)</summary>", text)
    assert folded == ["ADE20K, ablation", "ADE20K, ViT-small and ViT-base"]


def test_images_are_small_and_masks_exact():
    def opened(html: str) -> tuple[str, Image.Image]:
        found = re.search(r"data:image/(\w+);base64,([^\"]*)", html)
        assert found is not None
        return found[1], Image.open(io.BytesIO(base64.b64decode(found[2]))).convert("RGB")

    painted = np.array(class_colours(9), np.uint8)[np.random.default_rng(0).integers(0, 9, (64, 64))]
    kind, back = opened(embed(painted, 'a "mask"'))
    assert kind == "png" and "&#34;mask&#34;" in embed(painted, 'a "mask"')
    np.testing.assert_array_equal(np.asarray(back), painted)
    noise = np.random.default_rng(0).integers(0, 255, (600, 400, 3), np.uint8)
    kind, photo = opened(embed(noise, "photo", 224))
    assert (kind, photo.size) == ("jpeg", (149, 224))


def run(method: str, first: float, last: float) -> dict[str, Any]:
    """A run whose classes of step 0 go from one mIoU to another."""
    values = results(method)
    for step, value in zip(values["steps"], (first, last, last), strict=True):
        step["scores"]["old"] = dict.fromkeys(step["scores"]["old"], value)
    return values


def test_the_story_sorts_methods_by_the_share_they_lost():
    runs = [run("ft", 78.4, 0.5), run("ilt", 78.4, 61.8), run("plop", 78.4, 65.5), run("mib", 78.4, 77.3)]
    begun = results("recall", finished=False)  # it may forget yet
    begun["steps"] = begun["steps"][:2]
    poor = run("lwf", 1.0, 1.0)  # what was never learned cannot be forgotten
    told = dict(story(sort(*runs, begun, poor, results("offline"))))
    assert list(told) == ["bad", "part", "good", "never", "bound"]
    names = {"bad": ["FT"], "part": ["ILT", "PLOP"], "good": ["MiB"], "never": ["LwF"], "bound": ["offline"]}
    assert {kind: re.findall(r"([A-Za-z]+) \(", text) for kind, text in told.items()} == names
    assert "78.4 → 0.5" in told["bad"] and "first 4 classes" in told["bad"]
    ((kind, text),) = story(sort(run("tiss", 70.0, 70.0)))
    assert kind == "good" and "keeps" in text
