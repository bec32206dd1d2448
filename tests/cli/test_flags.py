"""Flags become nested mappings, and unknown ones suggest the nearest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.fakes import folder, results
from tiss.cli.flags import flags_of, own_names, parse_flags
from tiss.cli.main import main
from tiss.config import RunConfig, merge
from tiss.errors import TissError

FLAGS = list(flags_of(RunConfig))


def parse(*words: str) -> dict:
    return parse_flags(list(words), FLAGS, {"resume": ""})[0]


def test_sections_and_names():
    assert parse("--data", "voc", "--data.root", "x", "--seed=4") == {
        "data": {"name": "voc", "root": "x"},
        "seed": "4",
    }
    assert parse("--data.root", "x", "--data", "voc") == {"data": {"root": "x", "name": "voc"}}


def test_booleans_need_no_value():
    assert parse("--data.photometric", "--seed", "1") == {"data": {"photometric": True}, "seed": "1"}
    assert parse("--data.flip", "off") == {"data": {"flip": "off"}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metod", "mib"], "did you mean '--method'"),
        (["--train.epoch", "3"], "did you mean '--train.epochs'"),
        (["--seed"], "--seed needs a value: a whole number"),
        (["--seed", "--task", "1"], "--seed needs a value"),
        (["voc"], "every option starts with --"),
    ],
)
def test_mistakes(words, message):
    with pytest.raises(TissError, match=message):
        parse(*words)


def test_flags_win_over_the_file_and_another_method_drops_its_settings():
    file = {"method": {"name": "mib", "distillation": 3}, "train": {"epochs": 2, "lr": 1}}
    assert merge(file, {"train": {"epochs": 5}})["train"] == {"epochs": 5, "lr": 1}
    assert merge(file, {"method": {"distillation": 4}})["method"] == {"name": "mib", "distillation": 4}
    assert merge(file, {"method": "ft"})["method"] == {"name": "ft"}


def test_errors_of_other_parts_get_the_command_s_own_names():
    with pytest.raises(TissError) as caught, own_names(["device", "lr"]):
        raise TissError("--train.device x: lower --train.lr or set --train.clip, see ../data.root")
    assert str(caught.value) == "--device x: lower --lr or set --train.clip, see ../data.root"


@pytest.mark.parametrize(
    "text", ["runs--v1.device is no run folder", "my--data.device: no such folder", "a/--data.lr"]
)
def test_what_looks_like_a_flag_within_a_path_stays(text: str):
    with pytest.raises(TissError) as caught, own_names(["device", "lr"]):
        raise TissError(text)
    assert str(caught.value) == text


def test_what_the_user_wrote_is_quoted_as_it_stands(capsys: pytest.CaptureFixture[str]):
    assert main(["train", "folder", "--out", "x", "--train.device", "cpu"]) == 2
    assert "unknown flag '--train.device': did you mean '--device'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bench", "--device", "tpu"], "--device takes"),
        (["bench", "--suite", "small", "--precision", "half"], "--precision takes"),
        (["bench", "data", "--device", "tpu"], "--device takes"),
        (["bench", "data", "--data", "voc", "--root", "nowhere"], "--root: nowhere"),
        (["data", "verify", "voc", "--root", "nowhere"], "--root: nowhere"),
        (["data", "stats", "voc", "--root", "nowhere"], "--root: nowhere"),
        (["grid", "15-1o", "--root", "nowhere", "--list"], "--root: nowhere"),
        (["report", "RUNS", "--device", "tpu"], "--device takes"),
        (["figure", "steps", "RUNS", "--device", "tpu"], "--device takes"),
    ],
)
def test_commands_name_their_own_flags(
    words: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder(tmp_path, results("ft"))
    assert main([str(tmp_path) if word == "RUNS" else word for word in words]) == 2
    assert f"tiss: {expected}" in capsys.readouterr().err
