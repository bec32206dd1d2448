"""The teaching page in a real browser: open, click, paint, teach, see the class, undo, save, reload; and its limits."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.app.browser import Browser, open_browser
from tests.app.test_page import PROGRAM, REQUIRED
from tests.app.test_server import fetch, free_port
from tests.user.story import Patch
from tiss.app import server, teach
from tiss.data.folder import Folder
from tiss.models import from_pretrained
from tiss.user.teach import Teaching

browser_needed = pytest.mark.skipif(
    PROGRAM is None, reason="needs chromium (Debian: apt-get install chromium)"
)
TILES = "document.querySelectorAll('.teach .tile').length"
STATUS = "document.querySelector('.teach .status').textContent"


@pytest.fixture
def desk(solved: Path, tmp_path: Path) -> teach.Desk:
    (tmp_path / "uploads").mkdir()
    teaching = Teaching(solved / "base", [str(solved / "stars")], device="cpu")
    return teach.Desk(teaching, tmp_path / "taught", tmp_path / "uploads")


def url_of(mask: np.ndarray) -> str:
    return teach.layer(mask.astype(np.uint8), [(0, 0, 0), (9, 9, 9)], 0)


def test_every_wish_of_the_page(desk: teach.Desk, solved: Path, tmp_path: Path):
    name = desk.act({})["images"][0]["name"]
    mask = np.asarray(Image.open(solved / "stars" / "masks" / f"{name}.png")) == 1
    found = desk.act({"do": "paint", "image": name, "mask": url_of(mask)})
    assert "painted" in found["images"][0]["painted"] and found["paint"].startswith("data:image/png")
    assert np.array_equal(teach.read_layer(found["paint"], mask.shape), mask)
    assert desk.act({"do": "undo", "image": name})["paint"] is None
    assert desk.act({"do": "paint", "image": name, "mask": ""})["images"][0]["painted"] == "not in it"
    assert "paint star" in desk.act({"do": "teach", "class_name": "star"})["error"]
    assert "teach first" in desk.act({"do": "start", "image": name})["error"]
    desk.act({"do": "paint", "image": name, "mask": url_of(mask)})
    taught = desk.act({"do": "teach", "class_name": "star"})
    assert taught["round"] == 1 and "star" in taught["result"] and "changed" in taught["images"][0]["changed"]
    shown = desk.act({"do": "show", "image": name})
    answer = teach.read_layer(shown["now"], mask.shape)
    assert np.array_equal(answer, desk.teaching.predict(name).mask > 0)
    changed = teach.read_layer(shown["changed"], mask.shape)
    assert np.array_equal(changed, desk.teaching.images[name].changed)
    assert len(desk.act({"do": "tile", "image": name})["pair"]) == 2
    assert "saved" in desk.act({"do": "save", "name": "with-star"})
    assert {path.name for path in (tmp_path / "taught").iterdir()} == {"with-star", "with-star-labels"}
    started = desk.act({"do": "start", "image": name})["paint"]
    assert np.array_equal(teach.read_layer(started, mask.shape), desk.teaching.predict(name).mask == 3)
    assert "teach first" in desk.act({"do": "save", "name": "again"})["error"]
    assert desk.act({"do": "save", "name": "with-star"})["error"].startswith("with-star: exists already")
    assert name not in {one["name"] for one in desk.act({"do": "close", "image": name})["images"]}


def test_names_cannot_break_out_of_the_page(desk: teach.Desk):
    name = next(iter(desk.teaching.images))
    desk.act({"do": "paint", "image": name, "mask": url_of(np.ones((64, 64)))})
    assert "<i>" not in desk.act({"do": "teach", "class_name": "<i>star"})["result"]
    assert "<i>" not in desk.act({"do": "show", "image": name})["legend"]


def test_wishes_that_are_refused(desk: teach.Desk, solved: Path, tmp_path: Path, monkeypatch: Patch):
    name = next(iter(desk.teaching.images))
    inside = tmp_path / "uploads" / "upload.png"
    Image.new("RGB", (60, 40)).save(inside)
    for wish, fault in (
        ({"do": "open", "path": str(solved / "stars" / "images" / f"{name}.png")}, "only uploaded files"),
        ({"do": "open", "path": str(inside.parent / ".." / "uploads")}, "only uploaded files"),
        ({"do": "save", "name": "../out"}, "plain name"),
        ({"do": "save", "name": "/etc/out"}, "plain name"),
        ({"do": "paint", "image": name, "mask": url_of(np.ones((3, 3)))}, "another size"),
        ({"do": "paint", "image": name, "mask": "data:image/png;base64,AAAA"}, "could not be read"),
        ({"do": "paint", "image": "nothing", "mask": None}, "nothing"),
    ):
        assert fault in desk.act(wish)["error"]
    monkeypatch.setattr(server, "MOST_PIXELS", 100)
    error = desk.act({"do": "open", "path": str(inside)})["error"]
    assert error.startswith("upload.png: 60 × 40") and str(tmp_path) not in error
    monkeypatch.setattr(teach, "MOST_IMAGES", 1)
    assert "close some" in desk.act({"do": "open", "path": str(inside)})["error"]


@pytest.fixture
def page(solved: Path, tmp_path: Path) -> Iterator[Browser]:
    if not REQUIRED:
        pytest.importorskip("gradio")
    place = server.Place(port=free_port())
    teaching = Teaching(solved / "base", device="cpu")
    stop = server.serve(teach.page_of(teaching, tmp_path / "taught"), place, lambda _: None, wait=False)
    try:
        assert PROGRAM is not None
        with open_browser(PROGRAM) as browser:
            browser.go(f"http://127.0.0.1:{place.port}")
            browser.wait("document.querySelector('.teach .empty')?.hidden === false")
            yield browser
    finally:
        stop()


def pointer(page: Browser, *places: tuple[float, float]) -> None:
    """Presses at the first place (shares of the image's sides), moves through the others, and lets go."""
    box = page.evaluate("(() => { const r = document.querySelector('.teach .photo').getBoundingClientRect();"
                        " return [r.left, r.top, r.width, r.height]; })()")  # fmt: skip
    at = [{"x": box[0] + x * box[2], "y": box[1] + y * box[3]} for x, y in places]
    how: dict[str, Any] = {"button": "left", "buttons": 1, "clickCount": 1}
    page.call("Input.dispatchMouseEvent", type="mousePressed", **at[0], **how)
    for place in at[1:]:
        page.call("Input.dispatchMouseEvent", type="mouseMoved", **place, **how)
    page.call("Input.dispatchMouseEvent", type="mouseReleased", **at[-1], **how)


def press(page: Browser, selector: str) -> None:
    page.evaluate(f"document.querySelector('.teach {selector}').click()")


PAINTED = (
    "(() => { const c = document.querySelector('.teach canvas'); return c.getContext('2d').getImageData(0, 0,"
    " c.width, c.height).data.filter((v, i) => i % 4 === 3 && v > 127).length; })()"
)


def painted(page: Browser) -> int:
    """Pixels of the canvas that are painted."""
    return int(page.evaluate(PAINTED))


def wait_painted(page: Browser, pixels: int) -> None:
    page.wait(f"{PAINTED} === {pixels}")


@browser_needed
def test_open_paint_teach_undo_save_and_reload(page: Browser, solved: Path, tmp_path: Path):
    for number, path in enumerate(sorted((solved / "stars" / "images").iterdir())[:3], 1):
        page.upload(".teach .files", path)
        page.wait(f"{TILES} === {number}")
    page.wait("document.querySelector('.teach .count').textContent === '3 open'")
    first = page.evaluate("document.querySelector('.teach .tile.on b').textContent")
    mask = np.asarray(Image.open(solved / "stars" / "masks" / f"{first}.png")) == 1
    rows, columns = np.nonzero(mask)
    star = float(np.median(columns)) / mask.shape[1], float(np.median(rows)) / mask.shape[0]

    pointer(page, star)  # a click proposes a region
    page.wait(
        "document.querySelector('.teach .proposal').complete && !document.querySelector('.teach .pending').hidden"
    )
    assert painted(page) == 0
    press(page, "[data-pending=add]")
    page.wait("document.querySelector('.teach .tile.on p').textContent.includes('painted')")
    region = painted(page)
    assert region > 0

    press(page, "[data-tool=brush]")
    pointer(page, (0.05, 0.05), (0.3, 0.05), (0.5, 0.1))
    page.wait("!document.querySelector('[data-act=undo]').disabled")
    assert painted(page) > region
    press(page, "[data-act=undo]")
    wait_painted(page, region)

    press(page, ".teach-it")  # without a name
    page.wait(f"{STATUS}.includes('name the class')")
    page.evaluate("document.querySelector('#teach-class').value = 'star'")
    press(page, ".teach-it")
    page.wait(f"{STATUS}.startsWith('learned')")
    assert "star" in page.evaluate("document.querySelector('.teach .result table').textContent")
    page.wait("document.querySelector('.teach .legend').textContent.includes('star')")
    page.wait("document.querySelector('.teach .tile.on p').textContent.includes('changed')")
    answers = []
    for view in ("before", "now"):
        press(page, f"[data-view={view}]")
        answers.append(page.evaluate("document.querySelector('.teach .answer').src"))
    assert answers[0] != answers[1]

    page.evaluate("document.querySelector('#teach-name').value = 'with-star'")
    press(page, ".save-it")
    page.wait(f"{STATUS}.includes('saved as with-star')")
    assert from_pretrained(tmp_path / "taught" / "with-star").classes == [
        "background",
        "disc",
        "square",
        "star",
    ]
    labels = Folder(str(tmp_path / "taught" / "with-star-labels"))
    assert labels.ids("train") == [first]
    assert int((labels.read("train", first).label == 1).sum()) == region

    page.call("Page.reload")
    page.wait(f"{TILES} === 3 && document.querySelector('.teach .result table') !== null")
    wait_painted(page, region)
    folder = os.environ.get("TISS_SCREENSHOTS")
    if folder:
        (Path(folder) / "teach.png").write_bytes(page.screenshot())


def test_a_password_guards_what_the_page_does(solved: Path, tmp_path: Path):
    pytest.importorskip("gradio")
    place = server.Place(port=free_port(), password="open sesame")
    teaching = teach.open_teaching(str(solved / "base"), str(solved / "stars"), "cpu")
    stop = server.serve(teach.page_of(teaching, tmp_path), place, lambda _: None, wait=False)
    try:
        address = f"http://127.0.0.1:{place.port}/gradio_api"
        wish = {"data": {}, "component_id": 1, "fn_name": "act", "session_hash": "x"}
        for path, data in (
            ("component_server", json.dumps(wish).encode()),
            ("upload", b"x"),
            (f"file={next(iter(teaching.images.values())).path}", None),
        ):
            assert fetch(f"{address}/{path}", data)[0] == 401
    finally:
        stop()
