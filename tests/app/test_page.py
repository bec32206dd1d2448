"""The page in a real browser: upload, hover, slide, side by side, and the run's tab."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.browser import Browser, find_browser, open_browser
from tests.app.test_server import fetch, free_port

REQUIRED = os.environ.get("TISS_REQUIRE_BROWSER") == "1"
PROGRAM = find_browser()
if REQUIRED and PROGRAM is None:
    pytest.fail("TISS_REQUIRE_BROWSER is set: apt-get install chromium", pytrace=False)
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs chromium (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def page(story: Path) -> Iterator[Browser]:
    if not REQUIRED:
        pytest.importorskip("gradio")
    from tiss.app.server import Place, build, serve
    from tiss.app.steps import open_steps

    place = Place(port=free_port())
    steps = open_steps(str(story / "third"), "cpu")
    stop = serve(lambda gradio, _: build(gradio, steps, story / "third"), place, lambda _: None, wait=False)
    try:
        assert PROGRAM is not None
        with open_browser(PROGRAM) as browser:
            browser.go(f"http://127.0.0.1:{place.port}")
            browser.wait("document.querySelector('#image input[type=file]') !== null")
            browser.upload("#image input[type=file]", sorted((story / "tomorrow" / "images").iterdir())[0])
            browser.wait("document.querySelector('#now .shown img')?.complete")
            yield browser
    finally:
        stop()
        with socket.socket() as probe:  # the port is free again
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", place.port))


def caption(page: Browser, where: str = "now") -> str:
    text: str = page.evaluate(f"document.querySelector('#{where} figcaption')?.textContent || ''")
    return text


def slide(page: Browser, step: int) -> None:
    page.evaluate(
        "(() => { const field = document.querySelector('#step input[type=number]');"
        f" field.value = {step}; field.dispatchEvent(new Event('input', {{bubbles: true}}));"
        " field.dispatchEvent(new Event('change', {bubbles: true})); field.blur(); })()"
    )
    page.wait(f"document.querySelector('#now figcaption')?.textContent.startsWith('step {step}:')")


def test_upload_is_segmented(page: Browser):
    assert caption(page) == "step 2: + moon"
    assert page.evaluate("document.querySelector('#now .shown img').src").startswith("data:image/png")


def test_pointer_names_the_class(page: Browser):
    page.wait("document.querySelector('#now .index img').naturalWidth > 0")
    place = page.evaluate("(() => { const r = document.querySelector('#now .shown img').getBoundingClientRect();"
                          " return [r.left + r.width / 2, r.top + r.height / 2]; })()")  # fmt: skip
    page.move(place[0] - 3, place[1])
    page.move(*place)
    name = page.wait("document.querySelector('#now .name').textContent")
    assert name in ("background", "disc", "square", "star", "moon")


def test_slider_goes_through_the_steps_and_old_stands_beside_new(page: Browser, tmp_path: Path):
    assert "moon" in page.evaluate("document.querySelector('#now figure').dataset.names")
    slide(page, 0)
    assert "star" not in page.evaluate("document.querySelector('#now figure').dataset.names")
    slide(page, 1)
    page.evaluate("document.querySelector('#beside input').click()")
    page.wait("document.querySelector('#before figcaption')?.textContent.startsWith('step 0:')")
    slide(page, 2)
    page.wait("document.querySelector('#before figcaption')?.textContent.startsWith('step 1:')")
    picture = page.screenshot()
    assert picture.startswith(b"\x89PNG")
    folder = os.environ.get("TISS_SCREENSHOTS")
    if folder:
        (Path(folder) / "app.png").write_bytes(picture)


def test_classes_can_be_hidden(page: Browser):
    source = "document.querySelector('#now .shown img').src"
    before = page.evaluate(source)
    click = "document.querySelectorAll('#classes input[type=checkbox]').forEach(box => box.click())"
    page.evaluate(click)
    if page.evaluate("document.querySelectorAll('#now .legend .chip').length") > 1:
        page.wait(f"{source} !== {before!r}")
    page.evaluate(click)
    page.wait(f"{source} === {before!r}")


def test_tab_with_curves_and_table(page: Browser):
    page.evaluate(
        "[...document.querySelectorAll('button[role=tab]')].find(tab => tab.textContent.trim() === 'Run').click()"
    )
    text = page.wait("document.querySelector('#run table')?.textContent")
    for word in ("moon", "mib", "recall"):
        assert word in text
    assert page.evaluate("document.querySelector('#run svg') !== null")
    cell = "getComputedStyle(document.querySelector('#run tbody td:last-child'))"  # as in a report
    assert page.evaluate(f"{cell}.borderTopWidth + {cell}.textAlign") == "0pxright"


def test_no_file_of_the_machine_is_served(page: Browser, story: Path):
    address = page.evaluate("location.origin")
    for path in (story / "third" / "config.json", Path("/etc/hostname"), Path(__file__)):
        assert fetch(f"{address}/gradio_api/file={path}")[0] in (403, 404)
    assert str(story) not in fetch(f"{address}/config")[1]
