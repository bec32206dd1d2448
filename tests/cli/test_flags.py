"""Flags become nested mappings, and unknown ones suggest the nearest."""

from __future__ import annotations

import pytest

from tiss.cli.flags import flags_of, parse_flags
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
