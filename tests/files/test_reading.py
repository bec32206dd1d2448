import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiss import files
from tiss.errors import TissError
from tiss.files.reading import parse_json

NAMES = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "bad JSON at line 1"),
        (b"", "bad JSON"),
        (b"\xff\xfe", "not text"),
        (b"[NaN]", "nan|NaN"),
        (b"[1e999]", "1e999"),
        (b"9" * 5000, "bad JSON"),
        (b'["\\ud800"]', "surrogate"),
        (b"[" * 100_000, "recursion|nested"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "deeper than 64"),
    ],
)
def test_bad_json_is_one_line_with_the_name(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(TissError, match=message) as caught:
        files.read_json(path)
    assert str(caught.value).startswith(str(path))


TEXT = st.text(st.characters(codec="utf-8"))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
        max_leaves=20,
    )
)
def test_reads_what_json_writes(value: object) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=False), "a.json") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "line 1"),
        ("a: 1\nb: \t- [", "line 2"),
        ("a: " + "9" * 5000, "bad YAML"),
        ("[" * 20_000, "recursion"),
        ("? [1]\n: 2", "bad YAML"),
        ("&a [*a]", "without end"),
        ("- &a [0, 0]\n" + "".join(f"- &{y} [*{x}, *{x}]\n" for x, y in pairwise(NAMES)), "without end"),
        ("!!python/object/apply:os.system [true]", "bad YAML"),
    ],
)
def test_bad_yaml_is_one_line_with_the_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(TissError, match=message) as caught:
        files.read_yaml(path)
    assert str(caught.value).startswith(str(path))


def test_yaml_and_text_with_a_mark_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa: [1, x]\n")
    assert files.read_yaml(tmp_path / "a.yaml") == {"a": [1, "x"]}
    assert files.read_text(tmp_path / "a.yaml") == "a: [1, x]\n"
    (tmp_path / "b.txt").write_bytes(b"caf\xe9")
    with pytest.raises(TissError, match="byte 3"):
        files.read_text(tmp_path / "b.txt")


def test_too_large_missing_and_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2, 3]")
    with pytest.raises(TissError, match="larger than the 4 bytes"):
        files.read_json(tmp_path / "a.json", max_bytes=4)
    with pytest.raises(TissError, match="no such file"):
        files.read_json(tmp_path / "b.json")
    with pytest.raises(TissError, match="Is a directory"):
        files.read_json(tmp_path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(TissError, match=r"config\.json: not a file"):  # or the suite's time limit ends it
        files.read_json(tmp_path / "config.json")


@pytest.mark.parametrize("name", ["a", "sub/a", "./a", "sub/./sub/a"])
def test_inside_joins(tmp_path: Path, name: str) -> None:
    assert files.inside(tmp_path, name) == tmp_path / name


@pytest.mark.parametrize("name", ["a" * 256, "sub/" + "é" * 130 + ".png", "\ud800" * 100])
def test_inside_refuses_names_too_long_for_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(TissError, match="longer than file names"):
        files.inside(tmp_path, name)


LEAVING = [
    r"/etc/passwd",
    r"..",
    r"../a",
    r"a/../../b",
    r"a/..",
    r"..\a",
    r"\a",
    r"C:\a",
    r"out/a",
    r"loop/a",
]


@pytest.mark.parametrize("name", ["", "a\0b", *LEAVING])
def test_inside_refuses_to_leave(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "out").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    with pytest.raises(TissError, match="leads"):
        files.inside(folder, name)
