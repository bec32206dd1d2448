"""The page: self-contained, honest, and with its story on top."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.reporting.fakes import GROUPS, folder, results
from tests.reporting.test_render import Checker
from tiss.palette import class_colours
from tiss.reporting.gallery import Gallery
from tiss.reporting.page import document, hero, image, legend, predictions, story, write_report
from tiss.reporting.runs import Experiment, experiments, load_results

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


def test_the_story(experiment: Experiment) -> None:
    (bad, forgets), (good, keeps), (bound, offline) = story(experiment)
    assert (bad, good, bound) == ("bad", "good", "bound")
    assert re.fullmatch(r"FT \(\d\d\.\d → \d\.\d\) forgets the first 4 classes\.", forgets)
    assert re.fullmatch(r"MiB \(.*\) and TISS \(.*\) keep them\.", keeps)
    assert offline.startswith("Offline training on everything at once reaches")


def test_what_was_never_learnt_is_not_forgotten() -> None:
    poor = results("mib")
    for step in poor["steps"]:
        step["scores"]["old"] = dict.fromkeys(step["scores"]["old"], 1.0)
    (found,) = experiments(load_results([poor]))
    assert story(found) == [
        (
            "bound",
            f"MiB (1.0 → 1.0) hardly learnt the first {len(found.groups[0])} classes: nothing to forget.",
        )
    ]


def test_without_forgetting_the_story_says_so() -> None:
    ((kind, text),) = story(experiments(load_results([results("tiss")]))[0])
    assert kind == "good"
    assert text.endswith("keeps the first 4 classes.")


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
