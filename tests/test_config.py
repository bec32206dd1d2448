"""Dataclass ↔ mapping: types, named sections, errors that name the flag."""

from dataclasses import dataclass, fields, is_dataclass, replace

import pytest

from tiss.config import (
    LEAST,
    DataConfig,
    EvalConfig,
    RunConfig,
    TrainConfig,
    convert,
    from_mapping,
    setting,
    to_mapping,
)
from tiss.data.base import DATASETS
from tiss.engine.recipes import resolve
from tiss.errors import TissError


def test_round_trip_through_plain_mappings():
    config = RunConfig(data=DataConfig("voc", root="x", scale=(0.5, 2.0)), seed=3, task=[["a"], ["b"]])
    mapping = to_mapping(config)
    assert mapping["data"]["scale"] == [0.5, 2.0]
    assert from_mapping(RunConfig, mapping) == config


def test_a_named_section_can_be_given_by_its_name():
    assert from_mapping(RunConfig, {"data": "voc"}).data == DataConfig("voc")
    assert from_mapping(RunConfig, {"protocol": "mib"}).protocol.name == "mib"


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"train": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"sead": 3}, "did you mean 'seed'"),
        ({"train": {"epochs": "many"}}, "train.epochs takes a whole number, not 'many'"),
        ({"train": {"epochs": 1.5}}, "train.epochs takes a whole number"),
        ({"setup": "overlap"}, "one of overlapped, disjoint"),
        ({"data": {"flip": "perhaps"}}, "true or false"),
        ({"data": {"scale": "1"}}, "data.scale"),
        ({"seed": None}, "seed needs a value"),
        ({"train": 3}, "expected key: value"),
    ],
)
def test_mistakes_name_the_flag(mapping, message):
    with pytest.raises(TissError, match="(?s).*" + message.replace("(", "\\(")):
        from_mapping(RunConfig, mapping)


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("3", int, 3),
        ("1e3", int, 1000),
        ("1e-3", float, 1e-3),
        ("off", bool, False),
        ("none", int | None, None),
        ("0.5,2", tuple[float, float], (0.5, 2.0)),
        ("0.5 2", tuple[float, float] | None, (0.5, 2.0)),
        (7, str | None, "7"),
    ],
)
def test_text_becomes_the_type(text, hint, value):
    assert convert(text, hint, "flag") == value


def test_every_setting_has_help():
    sections = {field.name for field in fields(RunConfig) if is_dataclass(field.default_factory)}
    assert sections == {"data", "protocol", "model", "train", "eval"}
    for section in (RunConfig, DataConfig, TrainConfig):
        for field in fields(section):
            assert field.metadata.get("help") or field.name in sections, field


def test_an_old_key_works_and_says_so(capsys: pytest.CaptureFixture[str]):
    @dataclass(frozen=True)
    class Section:
        gallery: int = setting(4, "how many", aliases=("pictures",))

    assert from_mapping(Section, {"pictures": 7}, "report") == Section(7)
    assert "pictures is now called report.gallery" in capsys.readouterr().err
    with pytest.raises(TissError, match="did you mean 'gallery'"):
        from_mapping(Section, {"galery": 7})


def test_a_removed_key_is_ignored_and_says_so_if_it_was_used(capsys: pytest.CaptureFixture[str]):
    assert from_mapping(RunConfig, {"train": {"shard": False}}) == RunConfig()
    assert capsys.readouterr().err == ""
    assert from_mapping(RunConfig, {"train": {"shard": True}}) == RunConfig()
    assert "train.shard" in capsys.readouterr().err


@pytest.mark.parametrize("name", LEAST)
def test_numbers_without_a_sense_are_refused(name: str):
    section, _, key = name.partition(".")
    for value in (LEAST[name] - 1, float("nan"), float("inf")):
        with pytest.raises(TissError, match="give a number from") as found:
            replace(RunConfig(), **{section: replace(getattr(RunConfig(), section), **{key: value})})
        assert found.value.setting == name
    with pytest.raises(TissError, match="the smaller one first"):
        from_mapping(RunConfig, {"data": {"scale": [2, 0.5]}})


def test_cityscapes_is_tested_on_whole_images_unless_told():
    config = RunConfig(data=DataConfig("cityscapes"), task="14-1")
    assert resolve(config, DATASETS.get("cityscapes")).eval.mode == "slide"
    assert resolve(RunConfig(eval=EvalConfig("crop")), DATASETS.get("cityscapes")).eval.mode == "crop"
    assert resolve(RunConfig(), DATASETS.get("voc")).eval.mode == "crop"
