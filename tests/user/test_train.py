"""Train, then extend twice: what is written, what it says, and what is refused."""

import errno
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from tests.engine.test_checkpoint import GoesDown
from tests.user.story import Patch, Refused, Said, change, second_step, tiss, write_folder
from tiss.engine.loop import LossLog
from tiss.models import SegmentationModel
from tiss.user import train
from tiss.user.model_source import line_of

MODELS = ("first", "second", "third")


def contents(folder: Path) -> dict[str, str]:
    """Every file under a folder by its hash."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def report(folder: Path) -> dict[str, dict]:
    return {row["name"]: row for row in json.loads((folder / "report.json").read_text())["classes"]}


def test_models_know_their_classes_steps_and_parents(story: Path):
    model = SegmentationModel.from_pretrained(story / "third")
    assert model.classes == ["background", "disc", "square", "star", "moon"]
    assert model.groups == [[1, 2], [3], [4]]
    assert [folder.resolve().name for folder in line_of(story / "third")] == [*MODELS]
    history = model.record["history"]
    assert [entry["method"] for entry in history] == ["recall", "recall", "mib"]
    assert [entry["classes"] for entry in history] == [["disc", "square"], ["star"], ["moon"]]
    assert history[0]["train_images"] + history[0]["held_out_images"] == 20
    assert 3 <= history[0]["held_out_images"] <= 8


def test_recall_keeps_statistics_and_leaves_the_body_alone(story: Path):
    assert [(story / name / "method.safetensors").exists() for name in MODELS] == [True, True, False]
    first, second = (SegmentationModel.from_pretrained(story / name) for name in MODELS[:2])
    old, new = first.body.state_dict(), second.body.state_dict()
    assert all(torch.equal(old[name], new[name]) for name in old)


def test_report_compares_by_labels_where_there_are_any_and_by_area_everywhere(story: Path):
    second, third = report(story / "second"), report(story / "third")
    assert second["star"]["kind"] == "new" and second["star"]["after"] is not None
    assert second["disc"]["before"] is None  # no labels tonight
    assert second["background"]["before"] is None  # label 0 may hide an old class
    assert third["background"]["before"] is not None and third["moon"]["before"] is None
    assert {second[name]["area_before"] is None for name in ("disc", "square")} == {False}
    pages = [(story / name / "report.html").read_text() for name in MODELS]
    assert ["data:image/" in page for page in pages] == [False, True, True]
    assert ["% of pixels before" in page for page in pages] == [False, True, True]
    assert "moon" in (story / "third" / "report.txt").read_text()


def test_card_has_scenario_steps_data_limits_and_no_empty_column(story: Path):
    first, second, third = ((story / name / "README.md").read_text() for name in MODELS)
    for part in ("## Scenario", "## Steps", "## Data", "## Limits", "| 2 | moon | mib |", "`second`"):
        assert part in third
    head = "IoU of the new classes |"
    assert f"{head}\n" in first
    assert f"{head} other pixels as before, % |\n" in second
    assert f"{head} change of the old ones | other pixels as before, % |\n" in third
    same = SegmentationModel.from_pretrained(story / "second").record["history"][1]["pixels_as_before"]
    (row,) = (line for line in second.splitlines() if line.startswith("| 1 | star |"))
    assert row.endswith(f"| {same:.1f} |")


def test_areas_are_compared_on_more_images(story: Path, tmp_path: Path):
    """All of the step's images count, and those of --images."""
    tiss(*second_step(story, tmp_path / "out"), "--images", story / "warehouse")
    again, before = contents(tmp_path / "out"), contents(story / "second")
    assert again["model.safetensors"] == before["model.safetensors"]  # the same seed, the same model
    more, plain = report(tmp_path / "out"), report(story / "second")
    assert more["star"]["after"] == plain["star"]["after"]  # scores are those of the held-out images
    assert more["disc"]["area_before"] > plain["disc"]["area_before"]  # the warehouse shows more discs


def test_extend_says_what_it_destroyed(story: Path, tmp_path: Path, monkeypatch: Patch, said: Said):
    """The second step's training, after which nothing is a disc any more."""
    plain = train.Session.learn

    def learn(session: train.Session, *rest: object) -> float:
        seconds = plain(session, *rest)
        with torch.no_grad():
            session.model.head.biases[0][1] = -1e4
        return seconds

    monkeypatch.setattr(train.Session, "learn", learn)
    text = said(*second_step(story, tmp_path / "out"), "--epochs", 1)
    assert "warning: the new model has lost part of disc (" in text
    (warning,) = json.loads((tmp_path / "out" / "report.json").read_text())["warnings"]
    assert re.match(r"disc: [\d.]+ → 0\.0 % of the pixels", warning)


def paint_masks(data: Path, value: int) -> None:
    for path in (data / "masks").iterdir():
        Image.fromarray(np.full((32, 32), value, np.uint8)).save(path)


def leave_one_image(data: Path) -> None:
    for path in sorted((data / "masks").iterdir())[1:]:
        path.unlink()
        (data / "images" / path.name).unlink()


FAULTS = {
    "unknown index": (lambda model, data, out: paint_masks(data, 7), "label 7"),
    "no new pixels": (lambda model, data, out: paint_masks(data, 0), "'star'"),
    "one image": (lambda model, data, out: leave_one_image(data), "'star'"),
    "no masks": (lambda model, data, out: shutil.rmtree(data / "masks"), "masks"),
    "no image": (lambda model, data, out: next((data / "images").iterdir()).unlink(), "no image of that"),
    "missing weights": (lambda model, data, out: (model / "model.safetensors").unlink(), "model.safetensors"),
    "altered weights": (lambda model, data, out: change(model / "model.safetensors"), "altered"),
    "altered config": (lambda model, data, out: (model / "config.json").write_text('{"classes": ['), "JSON"),
    "no model": (lambda model, data, out: shutil.rmtree(model), "no such model folder"),
    "out exists": (lambda model, data, out: out.write_text("mine"), "--out"),
    "existing class": (["--classes", "star,disc"], "'disc'"),
    "empty class": (["--classes", "star,"], "--classes"),
    "unknown method": (["--method", "mibb"], "mib"),
    "a joint method": (["--method", "offline"], "--method"),
    "holdout": (["--holdout", "1"], "--holdout 1"),
    "device": (["--device", "tpu"], "--device takes auto, cpu,"),
    "images": (["--images", "nowhere"], "nowhere"),
    "minutes": (["--minutes", "-1"], "--minutes -1"),
    **{f"--{one} 0": ([f"--{one}", "0"], f"--{one} 0") for one in ("epochs", "batch", "size", "lr")},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_is_one_line_and_changes_nothing(fault: str, story: Path, tmp_path: Path, refused: Refused):
    model, data, out = tmp_path / "model", tmp_path / "data", tmp_path / "out"
    shutil.copytree(story / "first", model)
    shutil.copytree(story / "tonight", data)
    act, expected = FAULTS[fault]
    if callable(act):
        act(model, data, out)
    before = contents(tmp_path)
    words = ["extend", model, "--data", data, "--classes", "star", "--out", out, "--epochs", 1]
    line = refused(*words, *([] if callable(act) else act), last=fault == "images")
    assert expected in line
    assert contents(tmp_path) == before


def test_train_names_its_own_flags(story: Path, tmp_path: Path, refused: Refused):
    words = ["train", story / "warehouse", "--out", tmp_path / "out", "--encoder", "vit_micro_patch8"]
    for flags, expected in (
        (["--pretrained", "nowhere"], "--pretrained nowhere"),
        (["--encoder", "resnet50", "--decoder", "mask", "--pretrained", "none"], "--decoder mask"),
        (["--lr", "1e30"], "train.lr"),  # a remedy names settings, not flags
        (["--freeze", "--pretrained", "none"], "--freeze needs pretrained weights"),
    ):
        assert expected in refused(*words, "--epochs", 4, *flags, last=True)


def test_classes_come_from_the_list_where_none_are_named(story: Path, tmp_path: Path, refused: Refused):
    data = write_folder(tmp_path / "data", ["disc"], 4)
    command = ["extend", story / "first", "--data", data, "--out", tmp_path / "out"]
    assert "knows every class" in refused(*command)
    assert "'discs'" in refused(*command, "--classes", "discs")


def test_a_disk_without_room_for_the_model_is_refused_before_training(
    story: Path, tmp_path: Path, monkeypatch: Patch, refused: Refused
):
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
    monkeypatch.setattr(train.Session, "learn", Mock(side_effect=AssertionError("it began to train")))
    first = ["train", story / "warehouse", "--encoder", "vit_micro_patch8", "--out", tmp_path / "out"]
    for command in (first, second_step(story, tmp_path / "out")):
        assert "No space left" in refused(*command, last=True)
    assert list(tmp_path.iterdir()) == []


def test_a_frozen_encoder_stays_as_it_was(story: Path, tmp_path: Path):
    """The first model's own weights are the pretrained ones: a tensor that moved would differ."""
    words = ["--encoder", "vit_micro_patch8", "--epochs", 1, "--freeze", "--size", 32]
    tiss("train", story / "warehouse", "--out", tmp_path / "out", *words, "--pretrained", story / "first")
    first, frozen = (SegmentationModel.from_pretrained(path) for path in (story / "first", tmp_path / "out"))
    old, new = first.encoder.state_dict(), frozen.encoder.state_dict()
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert frozen.architecture.decoder == "levels" and frozen.head.parts == 3


def test_a_mask_transformer_is_trained_with_a_method_that_fits_it(story: Path, tmp_path: Path):
    words = ["--encoder", "vit_micro_patch8", "--decoder", "mask", "--epochs", 1, "--size", 32]
    tiss("train", story / "warehouse", "--out", tmp_path / "out", *words, "--pretrained", "none")
    assert SegmentationModel.from_pretrained(tmp_path / "out").record["method"] == "mib"


@pytest.mark.parametrize("command", ["train", "extend"])
@pytest.mark.parametrize("moment", ["in the middle", "at the end"])
def test_stopped_and_resumed_to_the_same_bytes(
    command: str, moment: str, story: Path, tmp_path: Path, monkeypatch: Patch
):
    first = ["train", story / "warehouse", "--encoder", "vit_micro_patch8"]
    second = ["extend", story / "first", "--data", story / "tonight", "--classes", "star"]
    words = [*(first if command == "train" else second), "--epochs", 4, "--out"]
    tiss(*words, tmp_path / "straight")
    out, calls, plain = tmp_path / "deep" / "out", [], LossLog.add

    def add(self: LossLog, iteration: int, *rest: object) -> None:
        plain(self, iteration, *rest)  # type: ignore[arg-type]
        calls.append(iteration)
        if moment == "in the middle" and iteration == 5:
            raise GoesDown

    monkeypatch.setattr(LossLog, "add", add)
    with monkeypatch.context() as patched:
        if moment == "at the end":
            patched.setattr(train, "write_card", Mock(side_effect=GoesDown))
        with pytest.raises(GoesDown):
            tiss(*words, out)
    assert not out.exists()
    updates, moment = len(calls), "again"
    tiss(*words, out, "--resume")
    assert calls[updates:][:1] != [0]  # it did not start again
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    one, two = (contents(folder) for folder in (tmp_path / "straight", out))
    for name in ("model.safetensors", "method.safetensors", "confusion.safetensors"):
        assert one[name] == two[name]


def test_every_process_finds_the_model_finished_and_one_says_so(
    story: Path, tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
):
    """Killed after the model was moved into place, resumed by two processes, of which the first cleans up."""
    shutil.copytree(story / "second", tmp_path / "out")
    (tmp_path / "out.training").mkdir()
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        tiss(*second_step(story, tmp_path / "out"), "--resume")
    assert capsys.readouterr().out.count("model: ") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_another_command_replaces_one_that_was_given_up(
    story: Path, tmp_path: Path, monkeypatch: Patch, refused: Refused
):
    words = second_step(story, tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr(train, "write_card", Mock(side_effect=GoesDown))
        with pytest.raises(GoesDown):
            tiss(*words)
    assert "resume" in refused(*words, last=True)
    assert "different" in refused(*words, "--seed", 7, "--resume", last=True)
    tiss(*words, "--seed", 7)
    assert not (tmp_path / "out.training").exists()


def test_a_frozen_model_is_extended_and_exported(story: Path, tmp_path: Path):
    words = ["--encoder", "vit_micro_patch8", "--freeze", "--size", 32, "--pretrained", story / "first"]
    tiss("train", story / "warehouse", "--out", tmp_path / "one", *words)
    tiss(
        "extend",
        tmp_path / "one",
        "--data",
        story / "tonight",
        "--classes",
        "star",
        "--method",
        "analytic",
        "--out",
        tmp_path / "two",
    )
    made = SegmentationModel.from_pretrained(tmp_path / "two")
    assert made.architecture.decoder == "levels" and made.classes[-1] == "star"
    tiss("export", tmp_path / "two", "--data", story / "tonight", "--out", tmp_path / "two.onnx")
