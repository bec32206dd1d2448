import json
import shutil
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from tests.data.samples import make_folder, make_voc, write_mask, write_picture
from tests.data.server import running
from tests.data.test_benchmarks import matlab_file
from tests.data.test_download import make_zip
from tests.data.test_folder import FAULTS, break_everything
from tests.user.story import Patch, Refused, Said
from tiss.cli.data import Kind
from tiss.data.benchmarks import VOC
from tiss.data.convert import TOOLS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("TISS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data")


def test_verify_good_data(root: Path, said: Said):
    write_picture(root / "images/train/large.jpg", 20, 10)
    write_mask(root / "masks/train/large.png", [2], 20, 10)
    text = said("data", "verify", "folder", "--root", root)
    assert "train     4 images, 12×8 to 20×10 pixels, labels 0 to 2, 6.56 % ignored, faults: none" in text
    assert "1-1   overlapped     0       2" in text
    assert "Nothing is published of these lists." in text


def test_a_folder_needs_no_test_images_of_its_own(root: Path, said: Said):
    for kind in ("images", "masks"):
        shutil.rmtree(root / kind / "test")
    assert "no images/test" in said("data", "verify", "folder", "--root", root)
    shutil.rmtree(root / "masks" / "train")
    said("data", "verify", "folder", "--root", root, code=1)


@pytest.mark.parametrize("quick", ["true", "false"])
def test_verify_lists_every_fault(root: Path, said: Said, quick: str):
    break_everything(root)
    text = said("data", "verify", "folder", "--root", root, "--quick", quick, code=1)
    faults = [line for line in text.splitlines() if line.startswith("fault: ")]
    assert [sum(words in fault for fault in faults) for words in FAULTS] == [1] * len(faults)
    assert f"faults: {len(FAULTS)}" in text


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_verify_compares_with_published_lists(tmp_path: Path, said: Said, form: str):
    train = {f"id{label}": [label] for label in range(1, 21)}
    root = make_voc(tmp_path / "data", train, {"t": [1]})
    text = said("data", "verify", "voc", "--root", root, "--task", "15-5", "--table", form, code=1)
    assert "difference: train: 20 ids in the list, published are 10582" in text
    assert "0 of 4 published lists confirmed by SHA-256." in text
    assert {"text": "DIFFERS", "markdown": "| ---", "latex": r"\begin{tabular}"}[form] in text


def test_verify_with_lists(tmp_path: Path, said: Said, refused: Refused):
    root = make_voc(tmp_path / "data", {f"id{label}": [label] for label in range(1, 21)}, {"t": [1]})
    words = ["data", "verify", "voc", "--root", root, "--task", "5-5", "--lists"]
    assert "nope: no such folder" in refused(*words, tmp_path / "nope", last=True)
    (tmp_path / "lists").mkdir()
    assert "no lists of 5-5 overlapped" in said(*words, tmp_path / "lists", code=1)
    (tmp_path / "lists" / "5").mkdir()
    assert "no lists of" not in said(*words, tmp_path / "lists", code=1)


def test_verify_shows_the_setups_that_are_possible(tmp_path: Path, said: Said):
    train = {f"id{label}": [label, 20] for label in range(1, 21)}
    root = make_voc(tmp_path / "data", train, {"t": [1]})
    text = said("data", "verify", "voc", "--root", root, "--task", "10-10", code=1)
    assert "not possible: 10-10 disjoint: leaves step 0" in text
    assert "10-10  overlapped     0      10" in text


def test_verify_names_masks_of_jpeg_bytes(root: Path, said: Said):
    with Image.open(root / "masks/train/a.png") as mask:
        mask.convert("L").point(lambda value: 0).save(root / "masks/train/a.png", "JPEG", quality=100)
    text = said("data", "verify", "folder", "--root", root)
    assert "warning: masks that are JPEG files, with inexact labels: 1, the first" in text


def test_mistakes_are_one_line(root: Path, refused: Refused):
    for words, expected in (
        (["verify"], "DATA missing"),
        (["verify", "folder", "--rot", "x"], "--root"),
        (["dance"], "choose one of"),
        (["verify", "foldr", "--root", root], "did you mean 'folder'"),
        (["verify", "voc", "--root", root], "JPEGImages"),
        (["download", "coco"], "one of"),
        (["convert", "coco", "none.json", "--out", "x"], "no such file"),
    ):
        assert expected in refused("data", *words)


def test_help_teaches(said: Said):
    assert "data convert" in said("data") == said("data", "--help")
    assert "--quick" in said("data", "verify", "--help")
    assert "here/cityscapes/gtFine/train" in said("data", "download", "cityscapes", "--root", "here")


def archived(folder: Path, form: str) -> bytes:
    name = shutil.make_archive(str(folder.parent / "packed"), form, folder)
    return Path(name).read_bytes()


def test_download_voc(tmp_path: Path, said: Said, refused: Refused, monkeypatch: Patch):
    devkit = make_voc(tmp_path / "devkit", {"t": [1]}, {"v": [2]}) / "VOCdevkit/VOC2012"
    (devkit / "SegmentationClassAug").rename(devkit / "SegmentationClass")
    (devkit / "ImageSets/Segmentation/train_aug.txt").rename(devkit / "ImageSets/Segmentation/train.txt")
    sbd = tmp_path / "sbd/benchmark_RELEASE/dataset"
    (sbd / "cls").mkdir(parents=True)
    (sbd / "cls/t.mat").write_bytes(matlab_file(np.full((8, 12), 7, np.uint8)))
    (sbd / "train.txt").write_text("t\n")
    (sbd / "val.txt").write_text("v\n")
    with running() as server:
        server.files["voc.tar"] = archived(tmp_path / "devkit", "tar")
        server.files["sbd.tgz"] = archived(tmp_path / "sbd", "gztar")
        server.break_after = [7000]
        words = ["data", "download", "voc", "--root", tmp_path / "out", "--url", server.url("voc.tar")]
        assert "wrong bytes, md5" in refused(*words, last=True)
        words += ["--checksum", "none", "--sbd-url", server.url("sbd.tgz"), "--sbd-checksum", "none"]
        assert "VOC2012 is ready; check it with: tiss data verify voc" in said(*words)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["VOCdevkit", "downloads.json"]
    assert VOC(str(tmp_path / "out")).classes_present("train") == {"t": {1}}
    said(*words)  # what is there is not fetched again
    shutil.rmtree(tmp_path / "out/VOCdevkit/VOC2012/ImageSets")
    monkeypatch.setattr("tiss.data.download._ATTEMPTS", 1)
    assert "broke off" in refused(*words)  # the server is gone, so it was asked


def test_download_refuses_an_archive_that_climbs_out(tmp_path: Path, refused: Refused):
    bad = make_zip(tmp_path / "bad.zip", {"ADEChallengeData2016/a.txt": b"", "../evil.txt": b"x"})
    with running() as server:
        server.files["ade.zip"] = bad.read_bytes()
        words = ["data", "download", "ade20k", "--root", tmp_path / "out", "--url", server.url("ade.zip")]
        assert "leads out of the folder" in refused(*words, "--checksum", "none", last=True)
    assert not (tmp_path / "evil.txt").exists()
    assert not (tmp_path / "out/ADEChallengeData2016").exists()


def test_stats(root: Path, tmp_path: Path, said: Said, refused: Refused):
    plot = tmp_path / "plot.svg"
    text = said("data", "stats", "folder", "--root", root, "--task", "1-1", "--plot", plot)
    assert "    1  cat                    2            80  27.78            1           32  33.33" in text
    assert "  255  ignored                1            32  11.11            0            0   0.00" in text
    assert "   1    1  dog                      2                2            1" in text
    assert "<svg" in plot.read_text()
    words = ["data", "stats", "folder", "--root", root, "--task", "1-1", "--plot", tmp_path / "x.exe"]
    assert "must end in .png" in refused(*words)


def test_stats_says_why_disjoint_is_not_possible(root: Path, said: Said, refused: Refused):
    for name in ("a", "b"):
        (root / f"images/train/{name}.jpg").unlink()
        (root / f"masks/train/{name}.png").unlink()
    assert "step 0 (disjoint)" in said("data", "stats", "folder", "--root", root)
    assert "task" in refused("data", "stats", "folder", "--root", root, "--task", "5-5")


def test_convert_shows_classes_slips_and_what_was_left_out(tmp_path: Path, monkeypatch: Patch, said: Said):
    monkeypatch.chdir(tmp_path)
    square = {"points": [[0, 0], [4, 0], [4, 6], [0, 6]]}
    for number, label in enumerate(("tv", "tv", "Tv", "person")):
        write_picture(Path(f"labels/{number}.jpg"))
        size = {"imagePath": f"{number}.jpg", "imageWidth": 12, "imageHeight": 8}
        Path(f"labels/{number}.json").write_text(json.dumps(size | {"shapes": [square | {"label": label}]}))
    words = ["data", "convert", "labelme", "labels", "--out"]
    lines = said(*words, "whole", "--test-share", 0, "--link").splitlines()
    assert lines[0] == "whole: 4 training and 0 test images, 3 classes"
    assert Path("whole/images/train/0.jpg").is_symlink()
    assert "4 images" in said("data", "verify", "folder", "--root", "whole")
    assert lines[2:6] == [
        "class   images  objects  pixels  % of pixels",
        "Tv           1        1      24         6.25",
        "person       1        1      24         6.25",
        "tv           2        2      48        12.50",
    ]
    assert "look: 'Tv' and 'tv' differ only in case, spaces, hyphens or one letter" in lines
    assert lines[-1].startswith("look at whole/contact.png")
    assert not any("left out" in line for line in lines)
    for number in range(4, 9):
        write_picture(Path(f"labels/{number}.jpg"))
    Path("labels/0.jpg").write_bytes(b"\xff\xd8\xff")
    text = said(*words, "chosen", "--classes", "person")
    assert "look:" not in text, "neither of the two was chosen"
    assert "left out: 5 without labels: labels/4.jpg, labels/5.jpg, labels/6.jpg, …\n" in text
    assert "an outline named background" in text
    assert "not copied: labels/0.jpg: not a readable image" in text


def test_convert_names_every_tool(said: Said):
    assert set(get_args(Kind)) == set(TOOLS)
    text = said("data", "convert", "--help")
    assert all(f"\n  {name} " in text for name in TOOLS)


def test_verify_ade20k_with_and_without_its_lists(tmp_path: Path, said: Said):
    base = tmp_path / "ADEChallengeData2016"
    for label in (1, 60, 120, 150):
        write_picture(base / f"images/training/t{label:03d}.jpg", value=label)
        write_mask(base / f"annotations/training/t{label:03d}.png", [label])
    write_picture(base / "images/validation/v.jpg", value=5)
    write_mask(base / "annotations/validation/v.png", [1])
    words = ["data", "verify", "ade20k", "--root", tmp_path, "--task", "100-50"]
    text = said(*words, code=1)  # the whole list is not the published one
    assert "100-50  disjoint       0       2      13452" in text
    assert "own partition" in text
    assert "cannot be made again" in text
    (tmp_path / "lists/100-50").mkdir(parents=True)
    for step, rows in enumerate(([0, 1, 2], [3])):
        np.save(tmp_path / f"lists/100-50/train-{step}.npy", np.array(rows))
    text = said(*words, "--lists", tmp_path / "lists", code=1)
    assert "100-50  disjoint       0       3      13452" in text
    assert "step 0: the lists given hold 3 images here" in text
