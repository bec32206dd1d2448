"""The page's parts without a browser: who may reach it, what may be uploaded, what an answer says."""

import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.report import fakes
from tests.user.story import Patch, Refused
from tiss.app import server
from tiss.app.server import Place, check_place, read_upload
from tiss.app.steps import RED, changes_chart, image_html, open_steps, run_html, steps_html
from tiss.errors import TissError
from tiss.user.changes import ClassChange


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_bad_places_are_one_line(story: Path, refused: Refused):
    pytest.importorskip("gradio")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "in use" in refused("app", story / "third", "--port", taken.getsockname()[1])
    assert "set a password" in refused("app", story / "third", "--address", "0.0.0.0")
    assert "--port 70000" in refused("app", story / "third", "--port", 70000)
    assert "no such model folder" in refused("app", "nowhere", "--port", free_port())
    check_place(Place("localhost", free_port()))
    check_place(Place("0.0.0.0", free_port(), password="long enough"))


def test_uploads_are_limited_and_errors_name_no_path(tmp_path: Path, monkeypatch: Patch):
    path = tmp_path / "picture.png"
    Image.new("RGB", (60, 40)).save(path)
    assert read_upload(str(path)).shape == (3, 40, 60)
    monkeypatch.setattr(server, "LONGEST", 30)
    assert read_upload(str(path)).shape == (3, 20, 30)
    monkeypatch.setattr(server, "MOST_PIXELS", 100)
    with pytest.raises(TissError, match=r"^the image: 60 × 40 pixels are more") as error:
        read_upload(str(path))
    assert str(tmp_path) not in str(error.value)
    (tmp_path / "fake.png").write_text("<svg onload=alert(1)>")
    with pytest.raises(TissError, match=r"^the image: not a readable image"):
        read_upload(str(tmp_path / "fake.png"))
    monkeypatch.setattr(server, "MOST_BYTES", 10)
    with pytest.raises(TissError, match="more than 0 MB"):
        read_upload(str(path))


def test_names_cannot_break_out_of_the_page():
    evil = '"><script>alert(1)</script>'
    html = image_html(
        evil, np.zeros((4, 4, 3), np.uint8), np.ones((4, 4), np.uint8), ["background", evil], [evil]
    )
    assert "<script" not in html
    record = {"history": [{"step": 0, "classes": [evil], "method": evil}]}
    reports = [[ClassChange(evil, after=1.0, area_before=2.0, area_after=1.0)], [ClassChange(evil)]]
    assert "<script" not in steps_html(["background", evil], record, reports)


def test_hidden_classes_are_not_drawn():
    image, mask = np.full((4, 4, 3), 90, np.uint8), np.ones((4, 4), np.uint8)
    drawn, plain = (image_html("t", image, mask, ["background", "disc"], shown) for shown in (["disc"], []))
    assert re.findall(r'class="shown">[^>]*', drawn) != re.findall(r'class="shown">[^>]*', plain)


@pytest.fixture
def running(story: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """`tiss app` in a process of its own, with a password, an empty home and an empty working folder."""
    pytest.importorskip("gradio")
    home = tmp_path / "home"
    home.mkdir()
    port = free_port()
    package = os.pathsep.join([str(Path(server.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    own = {"HOME": str(home), "TISS_APP_PASSWORD": "open sesame", "XDG_CACHE_HOME": str(tmp_path / "c")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tiss", "app", str(story / "third"), "--port", str(port), "--device", "cpu"],
        cwd=home,
        env=os.environ | own | {"PYTHONPATH": package},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1"), line
        yield f"http://127.0.0.1:{port}", home
    finally:
        process.terminate()
        process.wait(20)


def fetch(address: str, data: bytes | None = None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data=data), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_password_guards_everything_and_answers_name_no_folder(story: Path, running: tuple[str, Path]):
    address, home = running
    for path in ("/config", "/gradio_api/info", "/gradio_api/file=" + str(story / "third" / "config.json")):
        assert fetch(address + path)[0] in (401, 403, 404)
    code, page = fetch(address + "/")
    assert code == 200
    assert str(story) not in page
    assert [path for path in home.rglob("*") if path.is_file()] == []


def test_a_run_has_its_curves_and_tables(story: Path, tmp_path: Path):
    run = fakes.folder(tmp_path, fakes.results("mib"))
    ignore = shutil.ignore_patterns("confusion*")  # that of a step of the fake run would have other classes
    for step, name in enumerate(("first", "second", "third")):
        shutil.copytree(story / name, run / f"step-{step}", dirs_exist_ok=True, ignore=ignore)
    steps = open_steps(str(run), "cpu")
    assert len(steps) == 3
    html = run_html(run, steps)
    assert "<svg" in html and "<table" in html and str(tmp_path) not in html


def test_a_model_has_every_class_step_by_step(story: Path):
    steps = open_steps(str(story / "third"), "cpu")
    titles = ["step 0: + disc, square", "step 1: + star", "step 2: + moon"]
    assert [steps.title(step) for step in range(len(steps))] == titles
    html = run_html(story / "third", steps)
    for step in range(3):
        part = html.partition(f"<summary>Step {step}</summary>")[2].partition("</details>")[0]
        assert ("Old classes by labels" in part) == (step == 2), (
            "the second step has no labels of old classes"
        )
        assert ("Area of the old classes" in part) == (step > 0)
        assert re.search(r'scope="row">disc</th>(<td[^>]*>[^<]+</td>)+', part)
    chart = html[html.index("<svg") : html.index("</svg>")]
    assert all(name in chart for name in ("disc", "square", "star", "moon", "step 2", "IoU", "area"))


def test_a_class_that_shrinks_is_red():
    kept, lost = ClassChange("disc", after=60.0), ClassChange("disc", area_before=9.0, area_after=2.0)
    record = {"history": [{"step": 0}, {"step": 1}]}
    html = steps_html(["background", "disc"], record, [[kept], [ClassChange("background"), lost]])
    assert '<td class="worse">2.0</td>' in html and RED in html and "disc: 9.0 → 2.0 % of the pixels" in html
    assert RED not in steps_html(["background", "disc"], record, [[kept], [ClassChange("background"), kept]])


def test_of_many_classes_the_chart_has_those_that_changed_most():
    names = [f"class {number}" for number in range(200)]
    changes = [
        ClassChange(name, area_before=50.0, area_after=50.0 - index) for index, name in enumerate(names[:49])
    ]
    chart = changes_chart(names, [changes])
    assert "class 48<" in chart and "class 9<" in chart and "class 8<" not in chart
