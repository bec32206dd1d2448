"""Masks, overlays and shares; batches, any size, resuming, broken files, videos."""

import csv
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.user.story import Patch, Refused, Said, tiss
from tiss.engine import predictor
from tiss.engine.predictor import Predictor
from tiss.models import SegmentationModel
from tiss.randomness import stream
from tiss.user import items
from tiss.user.items import CAMERAS, find_items


def drawn(width: int, height: int, seed: int = 0) -> Image.Image:
    small = stream(seed, "picture").integers(0, 256, (8, 8, 3), np.uint8)
    return Image.fromarray(small).resize((width, height))


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    folder = tmp_path / "shots"
    (folder / "deep").mkdir(parents=True)
    sizes = {"a.png": (40, 32), "b.jpg": (40, 32), "deep/c.png": (17, 90), "deep/a.png": (3, 5)}
    for name, size in sizes.items():
        drawn(*size, seed=len(name)).save(folder / name)
    return folder


def test_masks_overlays_and_shares(story: Path, shots: Path, tmp_path: Path):
    out = tmp_path / "out"
    tiss("predict", story / "third", shots, "--out", out, "--device", "cpu")
    model = SegmentationModel.from_pretrained(story / "third")
    rows = {row["image"]: row for row in csv.DictReader((out / "shares.csv").open())}
    assert sorted(rows) == ["a", "b", "deep/a", "deep/c"]
    for name, path in (("a", "a.png"), ("b", "b.jpg"), ("deep/c", "deep/c.png"), ("deep/a", "deep/a.png")):
        mask = np.array(Image.open(out / "masks" / f"{name}.png"))
        assert np.array_equal(mask, Predictor(model, 32).predict(shots / path).mask)
        for channel, one in enumerate(model.classes):
            assert float(rows[name][one]) == pytest.approx((mask == channel).mean(), abs=1e-6)
        assert Image.open(out / "overlays" / f"{name}.png").width == mask.shape[1]
    assert json.loads((out / "shares.json").read_text()).keys() == rows.keys()


def test_resumes_and_skips_broken_files(story: Path, shots: Path, tmp_path: Path, said: Said):
    (shots / "broken.jpg").write_bytes(b"\xff\xd8 nothing")
    out = tmp_path / "out"
    command = ["predict", story / "first", shots, "--out", out]
    assert "left out: " in said(*command, code=1)
    assert "broken.jpg" in (out / "broken.txt").read_text()
    stamps = {path: path.stat().st_mtime_ns for path in (out / "masks").rglob("*.png")}
    (out / "masks" / "a.png").unlink()
    drawn(20, 20).save(shots / "broken.jpg")
    assert "5 images (3 of them earlier)" in said(*command)
    again = {path: path.stat().st_mtime_ns for path in (out / "masks").rglob("*.png")}
    assert {path for path in stamps if stamps[path] != again[path]} == {out / "masks" / "a.png"}


def test_an_image_that_was_replaced_is_done_again(story: Path, shots: Path, tmp_path: Path, said: Said):
    """A camera may write every image under the same name."""
    first, second = shots / "a.png", shots / "deep" / "c.png"
    camera = tmp_path / "camera"
    camera.mkdir()
    command = ["predict", story / "second", camera, "--out", tmp_path / "out"]
    found = []
    for shot in (first, first, second):
        shutil.copyfile(shot, camera / "now.png")
        os.utime(camera / "now.png", ns=(1, shot.stat().st_mtime_ns))
        earlier = "1 of them earlier" in said(*command)
        found.append(((tmp_path / "out" / "masks" / "now.png").read_bytes(), earlier))
    assert [earlier for _, earlier in found] == [False, True, False]
    journal = tmp_path / "out" / "done.jsonl"
    entry = json.loads(journal.read_text().splitlines()[-1]) | {"item": ["now"]}
    journal.write_text(json.dumps(entry) + "\n")  # damaged: taken for one of an older call
    tiss(*command)
    tiss("predict", story / "second", second, "--out", tmp_path / "alone")
    assert found[2][0] == (tmp_path / "alone" / "masks" / f"{second.stem}.png").read_bytes()


def test_patterns_names_and_results_within_the_folder(story: Path, shots: Path):
    items = find_items([str(shots / "*.png"), str(shots / "deep" / "*.png")])
    assert [item.name for item in items] == ["a", "a-2", "c"]
    for _ in range(2):  # the second time, masks and overlays lie in the folder that is searched
        tiss("predict", story / "first", shots, "--out", shots / "out")
    assert len(list((shots / "out" / "masks").rglob("*.png"))) == 4


def test_bad_input(story: Path, shots: Path, tmp_path: Path, refused: Refused):
    (shots / "notes.txt").write_text("x")
    tiss("predict", story / "first", shots / "a.png", "--out", tmp_path / "out")
    for model, path, out, expected in (
        ("first", shots / "*.bmp", "new", "nothing matches"),
        ("first", "nowhere.png", "new", "no such file"),
        ("first", shots / "notes.txt", "new", "neither an image"),
        ("third", shots / "a.png", "out", "another model"),
        ("third", shots / "a.png", "shots", "--out"),  # holds other files
        ("third", shots / "a.png", "shots/notes.txt", "not a folder"),
    ):
        assert expected in refused("predict", story / model, path, "--out", tmp_path / out)


def test_video(story: Path, tmp_path: Path, said: Said):
    av = pytest.importorskip("av")
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream_ = container.add_stream("mpeg4", rate=10)
        stream_.width, stream_.height, stream_.pix_fmt = 48, 32, "yuv420p"
        for index in range(5):
            frame = av.VideoFrame.from_ndarray(np.asarray(drawn(48, 32, index)), format="rgb24")
            container.mux(stream_.encode(frame))
        container.mux(stream_.encode())
    out = tmp_path / "out"
    tiss("predict", story / "first", path, "--out", out, "--every", 2)
    names = sorted(file.name for file in (out / "masks" / "clip").iterdir())
    assert names == ["frame-000000.png", "frame-000002.png", "frame-000004.png"]
    (tmp_path / "noise.mp4").write_bytes(b"not a video at all")
    words = ["predict", story / "first", tmp_path / "noise.mp4", "--out", tmp_path / "o2"]
    assert "broken video" in said(*words, code=1)


def test_raw_frames_from_standard_input(
    story: Path, tmp_path: Path, monkeypatch: Patch, said: Said, refused: Refused
):
    frames = [np.asarray(drawn(48, 32, index)) for index in range(5)]
    raw = b"".join(frame.tobytes() for frame in frames)
    words = ["predict", story / "first", "-", "--device", "cpu", "--out"]

    def send(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    send(raw)
    text = said(*words, tmp_path / "out", "--frame-size", "48x32", "--every", 2, "--frames", 2)
    assert re.search(r"2 images, [\d.]+ per second", text)
    model = Predictor(SegmentationModel.from_pretrained(story / "first"), 32)
    for number in (0, 2):
        mask = np.array(Image.open(tmp_path / "out" / "masks" / "stdin" / f"frame-{number:06d}.png"))
        assert np.array_equal(mask, model.predict(frames[number]).mask)
    send(raw)
    assert "cannot resume" in refused(*words, tmp_path / "out", "--frame-size", "48x32", "--every", 2)
    assert "--frame_size standard input needs" in refused(*words, tmp_path / "o2")
    assert not (tmp_path / "o2").exists()
    assert "within a frame" in refused(*words, tmp_path / "o3", "--frame-size", "47x31", last=True)
    assert "--frame_size 48: give" in refused(*words, tmp_path / "o4", "--frame-size", "48")


def test_a_camera(story: Path, tmp_path: Path, monkeypatch: Patch, said: Said):
    pytest.importorskip("av")
    monkeypatch.setitem(CAMERAS, sys.platform, ("lavfi", "testsrc=size=48x32:rate=5:duration={}"))
    said("predict", story / "first", "camera:2", "--frames", 3, "--out", tmp_path / "out", "--device", "cpu")
    names = sorted(path.name for path in (tmp_path / "out" / "masks" / "camera-2").iterdir())
    assert names == [f"frame-{number:06d}.png" for number in range(3)]


def test_a_stream_ends_with_ctrl_c(story: Path, tmp_path: Path, monkeypatch: Patch, said: Said):
    def frames(*_: object) -> Iterator[np.ndarray]:
        yield np.array(drawn(48, 32))
        raise KeyboardInterrupt

    monkeypatch.setattr(items, "raw_frames", frames)
    said("predict", story / "first", "-", "--frame-size", "48x32", "--batch", 1, "--out", tmp_path / "out")
    assert "stdin/frame-000000" in (tmp_path / "out" / "shares.csv").read_text()


def test_channels_a_few_at_a_time_equal_all_at_once(monkeypatch: Patch):
    logits = torch.randn(2, 5, 9, 7, generator=torch.Generator().manual_seed(0))
    whole = predictor.upsample_labels(logits, (50, 40), "softmax")
    monkeypatch.setattr(predictor, "MOST_LOGITS", 2 * 2 * 50 * 40)
    parts = predictor.upsample_labels(logits, (50, 40), "softmax")
    assert torch.equal(whole, parts)


def test_tiles_cover_every_pixel_and_native_keeps_the_size(story: Path, monkeypatch: Patch):
    model = SegmentationModel.from_pretrained(story / "third")
    image = torch.from_numpy(np.array(drawn(150, 70))).permute(2, 0, 1)
    averaged = Predictor(model, 32, native=True).one(image)
    monkeypatch.setattr(predictor, "MOST_LOGITS", 1)
    tiled = Predictor(model, 32, native=True).one(image)
    assert averaged.shape == tiled.shape == (70, 150)
    assert (averaged == tiled).float().mean() > 0.8  # windows disagree only where they overlap


def test_a_strip_does_not_become_millions_of_pixels():
    strip = torch.zeros(1, 3, 1, 3000, dtype=torch.uint8)
    assert predictor.resize(strip, 64).shape[-1] <= 3000


def test_of_a_data_set_only_the_images_are_segmented(tmp_path: Path):
    for part in ("images/train", "masks/train"):
        (tmp_path / part).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / part / "a.png")
    assert [item.path for item in find_items([str(tmp_path)])] == [tmp_path / "images" / "train" / "a.png"]
