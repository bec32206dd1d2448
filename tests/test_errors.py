import pickle

import pytest

from tiss.errors import TissError


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("a  b.txt: no such file", "a  b.txt: no such file"),
        ("class 'a\nb'\r\n is\u2028twice", "class 'a b' is twice"),
        ("name \x1b[2J\x07", "name \\x1b[2J\\x07"),
        ("half \ud800 pair", "half \\ud800 pair"),
    ],
)
def test_messages_are_one_printable_line(message: str, shown: str) -> None:
    assert str(TissError(message)) == shown


def test_long_messages_keep_both_ends() -> None:
    message = str(TissError("file.json: class " + "x" * 100_000 + " stands twice"))
    assert len(message) < 2000
    assert message.startswith("file.json: class x")
    assert message.endswith("x stands twice")


def test_errors_travel_between_processes() -> None:
    assert str(pickle.loads(pickle.dumps(TissError("a\nb")))) == "a b"


def test_escapes_do_not_make_a_message_long() -> None:
    assert len(str(TissError("\x01" * 1900))) < 2000
