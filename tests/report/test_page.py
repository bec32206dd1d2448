"""The page: self-contained, honest, and with its story on top."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.report.fakes import GROUPS, folder, results
from tests.report.test_render import Checker
from tiss.data.base import DATASETS
from tiss.palette import class_colours
from tiss.report.gallery import Gallery
from tiss.report.page import document, hero, paper, which_seed, write_report
from tiss.report.pictures import image, legend, mask_image, predictions
from tiss.report.runs import Experiment, experiments, load_results
from tiss.report.style import STYLE

VOID = {"meta", "img", "br"}


class PageChecker(Checker):
    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            super().handle_starttag(tag, attrs)


@pytest.fixture
def experiment() -> Experiment:
    return experiments(load_results([results(method) for method in ("ft", "mib", "tiss", "offline")]))[0]


@pytest.fixture
def gallery() -> Gallery:
    mask = np.zeros((64, 64), np.uint8)
    mask[:20] = 7
    picture = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    classes = tuple(results()["classes"])
    steps: dict[str, list[tuple[np.ndarray, ...] | None]] = {
        "FT": [(mask,)] * 3,
        "offline": [None, None, (mask,)],
    }
    return Gallery(("<id>",), (picture,), (mask,), steps, classes, GROUPS, tuple(class_colours(9)))


def test_page_stands_alone(tmp_path: Path) -> None:
    runs = [folder(tmp_path, results(method), weight="<&>") for method in ("ft", "tiss", "offline")]
    page = write_report(runs, tmp_path / "deep" / "report.html", title="A <title>")
    text = page.read_text()
    PageChecker().feed(text)
    assert "A &lt;title&gt;" in text
    assert "&lt;&amp;&gt;" in text  # settings are shown, and escaped
    loaded = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(link.startswith(("data:", "#")) for link in loaded)
    assert "@import" not in text
    assert "url(http" not in text
    assert len(text) < 300_000
    assert "prefers-color-scheme: dark" in text
    assert str(tmp_path) not in text.replace(f"out: {tmp_path}", "")


def test_two_experiments_have_two_sections(tmp_path: Path) -> None:
    page = write_report([results("ft"), results("ft", task="6-2")], tmp_path / "report.html")
    assert page.read_text().count("<section>") == 2


def test_predictions_have_a_row_a_method_and_a_column_a_step(gallery: Gallery) -> None:
    text = predictions(gallery)
    assert text.count("<img") == 2 + 3 + 1
    assert text.count("<td></td>") == 2
    assert "&lt;id&gt;" in text
    assert "rgb(230, 159, 0)" in legend(gallery)
    checker = PageChecker()
    checker.feed(text)
    assert checker.open == []


def test_hero_shows_what_is_left_after_the_last_step(experiment: Experiment, gallery: Gallery) -> None:
    text = hero(experiment, gallery)
    assert text.count("<img") == 4
    assert hero(experiment, None).count("<img") == 0


def test_masks_name_their_classes_not_by_colour_alone(gallery: Gallery) -> None:
    text = mask_image(gallery, gallery.truth[0], "truth", 92)
    assert re.search(r'<b style="left:\d+%;top:\d+%">moon</b>', text)
    assert text.count("<b ") == 1  # the background needs none
    assert predictions(gallery).count(">moon</b>") == 1 + 3 + 1


def test_feature_maps_stand_with_the_predictions(model_runs: list[Path], tmp_path: Path) -> None:
    text = write_report(model_runs, tmp_path / "report.html", pictures=1).read_text()
    PageChecker().feed(text)
    predicted, mapped = text.partition("<h3>Feature maps after each step</h3>")[::2]
    assert "<h3>Predictions after each step</h3>" in predicted
    assert (
        mapped.partition("<h3>")[0].count("<img") == 2 + 3
    )  # input, truth, three steps; offline has no steps
    assert "Feature maps" not in write_report(model_runs, tmp_path / "bare.html", pictures=0).read_text()


def test_where_similarity_cannot_be_measured_the_page_says_why(tmp_path: Path) -> None:
    text = write_report([results()], tmp_path / "report.html", images=4).read_text()
    assert "Not shown: it needs the runs&#x27; step folders." in text


def test_the_paper_s_tables_have_their_own_names() -> None:
    names = ("background", *DATASETS.get("ade20k").classes)
    groups = (tuple(range(1, 101)), tuple(range(101, 151)))
    values = results(groups=groups, classes=names, data="ade20k", task="100-50", setup="disjoint")
    (found,) = experiments(load_results([values]))
    summaries = re.findall(r"<summary>(.*?)</summary>", paper(found))
    assert summaries == ["ADE20K, ablation", "ADE20K, ViT-small and ViT-base"]


def test_pictures_sizes_stand_under_the_figures(tmp_path: Path) -> None:
    run = folder(tmp_path, results())
    assert "crops of" not in write_report([run], tmp_path / "report.html").read_text()  # not kept
    with (run / "config.yaml").open("a") as file:
        file.write("data: {name: shapes, resize: 96, crop: 64}\n")
    text = write_report([run], tmp_path / "report.html").read_text()
    assert text.count("Pictures resized to 96, crops of 64.") == 2


def test_wide_tables_shrink_before_they_scroll() -> None:
    rules = dict(re.findall(r"^(\.scroll[^{]*?) \{ (.*?) \}", STYLE, re.M))
    assert "overflow-x: auto" in rules[".scroll"] and "container-type: inline-size" in rules[".scroll"]
    assert "cqi" in rules[".scroll th, .scroll td"]
    assert "white-space: normal" in rules[".scroll thead th"]


def test_images_are_small_and_masks_exact() -> None:
    colours = np.array(class_colours(9), np.uint8)
    mask = np.random.default_rng(0).integers(0, 9, (64, 64))
    found = re.search(r"data:image/(\w+);base64,([^\"]*)", image(colours[mask], "mask"))
    assert found is not None
    assert found[1] == "png"
    back = np.asarray(Image.open(io.BytesIO(base64.b64decode(found[2]))).convert("RGB"))
    np.testing.assert_array_equal(back, colours[mask])
    noise = np.random.default_rng(0).integers(0, 255, (600, 400, 3), np.uint8)
    photo = re.search(r"data:image/(\w+);base64,([^\"]*)", image(noise, "photo"))
    assert photo is not None
    assert photo[1] == "jpeg"
    assert Image.open(io.BytesIO(base64.b64decode(photo[2]))).size == (149, 224)


def test_document_is_html() -> None:
    checker = PageChecker()
    checker.feed(document("t", ["<p>x</p>"]))
    assert checker.open == []


def test_pictures_of_one_seed_say_so() -> None:
    one, several = (
        experiments(load_results([results("mib", seed) for seed in seeds]))[0] for seeds in ((1,), (1, 2))
    )
    assert which_seed(one) == ""
    assert "first seed only: 1." in which_seed(several)
