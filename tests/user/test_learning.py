"""Train, then extend twice: what is written, what it says, and what is refused."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.user.story import second_step, write_folder
from tiss.cli.main import main
from tiss.engine.learner import Learner
from tiss.models import SegmentationModel
from tiss.user.source import line_of


def contents(folder: Path) -> dict[str, str]:
    """Every file under a folder by its hash."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that must end with code 2 and one line; returns the line."""
    capsys.readouterr()
    assert main(arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("tiss: ")
    return lines[0]


def test_models_know_their_classes_steps_and_parents(story: Path) -> None:
    model = SegmentationModel.from_pretrained(story / "third")
    assert model.classes == ["background", "disc", "square", "star", "moon"]
    assert model.groups == [[1, 2], [3], [4]]
    assert [folder.resolve().name for folder in line_of(story / "third")] == ["first", "second", "third"]
    history = model.record["history"]
    assert [entry["method"] for entry in history] == ["recall", "recall", "mib"]
    assert [entry["classes"] for entry in history] == [["disc", "square"], ["star"], ["moon"]]


def test_statistics_travel_while_recall_is_used_and_end_with_mib(story: Path) -> None:
    assert (story / "first" / "method.safetensors").exists()
    assert (story / "second" / "method.safetensors").exists()
    assert not (story / "third" / "method.safetensors").exists()


def test_recall_leaves_the_trunk_alone(story: Path) -> None:
    first, second = (SegmentationModel.from_pretrained(story / name) for name in ("first", "second"))
    old, new = first.body.state_dict(), second.body.state_dict()
    assert all(torch.equal(old[name], new[name]) for name in old)


def test_report_compares_by_labels_where_there_are_any(story: Path) -> None:
    second, third = (json.loads((story / name / "report.json").read_text()) for name in ("second", "third"))
    rows = {row["name"]: row for row in second["classes"]}
    assert rows["star"]["kind"] == "new"
    assert rows["star"]["after"] is not None
    assert rows["disc"]["before"] is None  # not labelled tonight: only its agreement is known
    assert rows["background"]["before"] is None
    rows = {row["name"]: row for row in third["classes"]}
    assert rows["background"]["before"] is not None
    assert rows["moon"]["before"] is None
    assert "data:image/png" in (story / "third" / "report.html").read_text()
    assert "IoU before" in (story / "third" / "report.html").read_text()
    assert "IoU before" not in (story / "first" / "report.html").read_text()  # there was nothing before it
    assert "moon" in (story / "third" / "report.txt").read_text()


def test_held_out_pictures_were_not_learnt_from(story: Path) -> None:
    entry = SegmentationModel.from_pretrained(story / "first").record["history"][0]
    assert entry["train_pictures"] + entry["held_out_pictures"] == 20
    assert 3 <= entry["held_out_pictures"] <= 8


def test_card_tells_scenario_steps_data_and_limits(story: Path) -> None:
    card = (story / "third" / "README.md").read_text()
    for part in ("## Scenario", "## Steps", "## Data", "## Limits", "| 2 | moon | mib |", "`second`"):
        assert part in card


def test_card_has_no_column_without_a_figure(story: Path) -> None:
    """A first model has no old classes; the second's were not labelled, so that only both models' pixels compare."""
    head = "| step | classes | method | pictures | IoU of the new classes |"
    first, second, third = ((story / name / "README.md").read_text() for name in ("first", "second", "third"))
    assert f"{head}\n" in first
    assert f"{head} other pixels as before, % |\n" in second
    assert f"{head} change of the old ones | other pixels as before, % |\n" in third
    same = SegmentationModel.from_pretrained(story / "second").record["history"][1]["pixels_as_before"]
    (row,) = (line for line in second.splitlines() if line.startswith("| 1 | star |"))
    assert row.endswith(f"| {same:.1f} |")
    (row,) = (line for line in second.splitlines() if line.startswith("| 0 |"))
    assert row.endswith("| – |")


def test_same_seed_gives_the_same_model(story: Path, tmp_path: Path) -> None:
    assert main(second_step(story, tmp_path / "again")) == 0
    assert (
        contents(tmp_path / "again")["model.safetensors"] == contents(story / "second")["model.safetensors"]
    )


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--epochs", "-3"), ("--epochs", "0"), ("--batch", "0"), ("--size", "0"), ("--lr", "0"), ("--lr", "-1")],
)
def test_numbers_that_mean_nothing_are_refused(
    flag: str, value: str, story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*second_step(story, tmp_path / "out"), flag, value]) == 2
    assert f"{flag} {value}: give a" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("unknown index", "label 7"),
        ("existing class", "has a class 'disc' already"),
        ("no new pixels", "no mask has a single pixel of 'star'"),
        ("one picture", "only one picture shows 'star'"),
        ("missing weights", "model.safetensors: no such file"),
        ("altered weights", "altered since it was saved"),
        ("altered config", "bad JSON"),
        ("out is taken", "there is something already"),
        ("no masks", "has no masks"),
        ("no model", "no such model folder"),
        ("unknown method", "unknown method"),
        ("mask without picture", "no picture of that name"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    fault: str, expected: str, story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data, out = tmp_path / "model", tmp_path / "data", tmp_path / "out"
    shutil.copytree(story / "first", model)
    shutil.copytree(story / "tonight", data)
    classes, method = "star", "auto"
    masks = sorted((data / "masks").iterdir())
    if fault == "unknown index":
        Image.fromarray(np.full((32, 32), 7, np.uint8)).save(masks[0])
    elif fault == "existing class":
        classes = "star,disc"
    elif fault == "no new pixels":
        for path in masks:
            Image.fromarray(np.zeros((32, 32), np.uint8)).save(path)
    elif fault == "one picture":
        for path in masks[1:]:
            path.unlink()
            (data / "images" / path.name).unlink()
    elif fault == "missing weights":
        (model / "model.safetensors").unlink()
    elif fault == "altered weights":
        path = model / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    elif fault == "altered config":
        (model / "config.json").write_text('{"classes": [')
    elif fault == "out is taken":
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    elif fault == "no masks":
        shutil.rmtree(data / "masks")
    elif fault == "no model":
        model = tmp_path / "nowhere"
    elif fault == "unknown method":
        method = "nonsense"
    elif fault == "mask without picture":
        (data / "images" / masks[0].name).unlink()
    before = contents(tmp_path)
    command = ["extend", str(model), "--data", str(data), "--classes", classes, "--out", str(out)]
    line = refused([*command, "--method", method, "--epochs", "1"], capsys)
    assert expected in line
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "words",
    [
        ["train", "warehouse", "--encoder", "vit_micro_patch8", "--out", "OUT"],
        ["extend", "first", "--data", "tonight", "--classes", "star", "--out", "OUT"],
        ["predict", "first", "tonight/images", "--out", "OUT"],
        ["compare", "first", "second", "--data", "tonight"],
        ["app", "first"],
    ],
    ids=lambda words: words[0],
)
def test_messages_name_the_flags_of_their_command(
    words: list[str],
    story: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if words[0] == "app":
        pytest.importorskip("gradio")
    monkeypatch.chdir(story)
    words = [str(tmp_path / "out") if word == "OUT" else word for word in words]
    assert refused([*words, "--device", "tpu"], capsys).startswith("tiss: --device takes auto, cpu,")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--encoder", "vit_micro_patch8", "--pretrained", "nowhere"], "--pretrained nowhere: no such file"),
        (
            ["--encoder", "resnet50", "--decoder", "mask", "--pretrained", "none"],
            "--decoder mask needs a plain",
        ),
        (["--encoder", "vit_micro_patch8", "--lr", "1e30"], "start again with a lower --lr"),
    ],
)
def test_train_names_its_own_flags(
    flags: list[str], expected: str, story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", str(story / "warehouse"), "--out", str(tmp_path / "out"), "--epochs", "4", *flags]
    assert main(command) == 2
    assert expected in capsys.readouterr().err.strip().splitlines()[-1]


def test_classes_come_from_the_list_where_none_are_named(
    story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_folder(tmp_path / "data", ["disc"], 4)
    command = ["extend", str(story / "first"), "--data", str(data), "--out", str(tmp_path / "out")]
    assert "knows every class" in refused(command, capsys)
    assert "unknown class 'discs'" in refused([*command, "--classes", "discs"], capsys)


def test_failing_at_the_last_moment_leaves_nothing(
    story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tiss.user.learning as learning

    def fail(*_: object) -> None:
        raise OSError("disk on fire")

    monkeypatch.setattr(learning, "write_card", fail)
    command = [
        "extend",
        str(story / "first"),
        "--data",
        str(story / "tonight"),
        "--classes",
        "star",
        "--epochs",
        "1",
    ]
    with pytest.raises(OSError, match="disk on fire"):
        main([*command, "--out", str(tmp_path / "deep" / "out")])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_disk_without_room_for_the_model_is_refused_before_anything_is_learnt(
    story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def learnt(*_: object) -> None:
        pytest.fail("it began to learn")

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(Learner, "fit", learnt)
    train = [
        "train",
        str(story / "warehouse"),
        "--encoder",
        "vit_micro_patch8",
        "--out",
        str(tmp_path / "out"),
    ]
    for command in (train, second_step(story, tmp_path / "out")):
        assert main(command) == 2
        assert "No space left on device" in capsys.readouterr().err.strip().splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_frozen_encoder_stays_as_it_was(
    story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first model's own weights serve as the pretrained ones: a tensor that moved would differ."""
    command = [
        "train",
        str(story / "warehouse"),
        "--out",
        str(tmp_path / "out"),
        "--encoder",
        "vit_micro_patch8",
    ]
    command += ["--epochs", "1", "--freeze"]
    assert "needs pretrained weights" in refused([*command, "--pretrained", "none"], capsys)
    assert main([*command, "--pretrained", str(story / "first"), "--size", "32"]) == 0
    first, frozen = (
        SegmentationModel.from_pretrained(place) for place in (story / "first", tmp_path / "out")
    )
    old, new = first.encoder.state_dict(), frozen.encoder.state_dict()
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert not torch.equal(first.head.rows[0], frozen.head.rows[0])
