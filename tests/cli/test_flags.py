"""Flags become nested mappings, mistakes suggest the nearest, and errors name the command's own flag."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.report.fakes import folder, results
from tests.user.story import Capture, Refused
from tiss.cli.flags import execute, flags_of, help_text, parse_flags
from tiss.config import REQUIRED, RunConfig, merge, setting
from tiss.errors import TissError

RUN = list(flags_of(RunConfig))


def parse(*words: str) -> dict:
    return parse_flags("run", words, RUN)


@dataclass(frozen=True)
class Options:
    model: str = setting(REQUIRED, "a model", positional=True)
    path: tuple[str, ...] = setting(REQUIRED, "images", positional=True)
    out: str = setting(REQUIRED, "where to")
    images: int = setting(4, "how many", aliases=("pictures",))
    lr: float = setting(1.0, "learning rate", sets="train.lr train.step_lr")
    json: bool = setting(False, "as JSON")


def command(setting: str | None = None, seen: list[Options] | None = None) -> Callable[[Options], int]:
    """A command that fails with an error about `setting`."""

    def run(options: Options) -> int:
        if setting:
            raise TissError("9: too much", setting=setting)
        (seen if seen is not None else []).append(options)
        return 0

    return run


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--data voc --data.root x --seed=4", {"data": {"name": "voc", "root": "x"}, "seed": "4"}),
        ("--seed 4 --data.root x --data voc", {"data": {"name": "voc", "root": "x"}, "seed": "4"}),
        ("--data.photometric --seed 1", {"data": {"photometric": True}, "seed": "1"}),
        ("--data.flip off", {"data": {"flip": "off"}}),
    ],
)
def test_words_become_nested_mappings(words: str, found: dict):
    assert parse(*words.split()) == found


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
def test_mistakes(words: list[str], message: str):
    with pytest.raises(TissError, match=message):
        parse(*words)


def test_flags_win_over_the_file_and_another_method_drops_its_settings():
    file = {"method": {"name": "mib", "distillation": 3}, "train": {"epochs": 2, "lr": 1}}
    assert merge(file, {"train": {"epochs": 5}})["train"] == {"epochs": 5, "lr": 1}
    assert merge(file, {"method": {"distillation": 4}})["method"] == {"name": "mib", "distillation": 4}
    assert merge(file, {"method": "ft"})["method"] == {"name": "ft"}


def test_positional_and_required_ones():
    seen: list[Options] = []
    assert execute("do", command(seen=seen), ["--json", "m", "a", "--out", "o", "b"]) == 0
    assert seen == [Options("m", ("a", "b"), "o", json=True)]
    with pytest.raises(TissError, match=r"PATH and --out missing; usage: tiss do MODEL PATH\.\.\. --out OUT"):
        execute("do", command(), ["m"])


def test_an_old_name_works_and_says_so(capsys: Capture):
    seen: list[Options] = []
    execute("do", command(seen=seen), ["m", "a", "--out", "o", "--pictures", "7"])
    assert seen[0].images == 7
    (line,) = capsys.readouterr().err.splitlines()
    assert "--pictures is now called --images" in line


@pytest.mark.parametrize(
    ("setting", "shown"),
    [("train.step_lr", "--lr"), ("out", "--out"), ("path", "PATH"), ("train.clip", "train.clip")],
)
def test_an_error_names_the_flag_that_sets_it(setting: str, shown: str):
    with pytest.raises(TissError) as caught:
        execute("do", command(setting), ["m", "a", "--out", "o"])
    assert str(caught.value) == f"{shown} 9: too much"


def test_help_has_usage_flags_and_examples():
    text = help_text("do", "Does it.\n\nExamples:\n  tiss do it\n", list(flags_of(Options)))
    for part in ("usage: tiss do MODEL PATH... --out OUT [options]", "Does it.", "--images", "how many [4]"):
        assert part in text
    assert text.endswith("examples:\n  tiss do it")
    assert "pictures" not in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "DIR", "--out", "x", "--train.device", "cpu"], "did you mean '--device'?"),
        (["bench", "--device", "tpu"], "--device takes"),
        (["bench", "--suite", "small", "--precision", "half"], "--precision takes"),
        (["bench", "data", "--data", "voc", "--root", "nowhere"], "--root nowhere"),
        (["data", "verify", "voc", "--root", "nowhere"], "--root nowhere"),
        (["grid", "15-1o", "--root", "nowhere", "--list"], "--root nowhere"),
        (["report", "DIR", "--device", "tpu"], "--device takes"),
        (["predict", "m", "x", "--every", "0"], "--every 0"),
    ],
)
def test_commands_name_their_own_flags(words: list[str], expected: str, tmp_path: Path, refused: Refused):
    folder(tmp_path, results("ft"))
    assert expected in refused(*[tmp_path if word == "DIR" else word for word in words])
