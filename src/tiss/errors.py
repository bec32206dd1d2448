"""The one error that a user is meant to see: a single line that names the file or setting and the remedy."""

import difflib
from collections.abc import Iterable


class TissError(Exception):
    """A mistake in the input. The command line prints it as one line and exits with code 2.

    `setting` is the dotted name of the setting at fault, as in Python and YAML; the command line shows it as a flag.
    Messages quote names from files, so line breaks and control characters in them are escaped here, once.

    >>> print(TissError("0: must be at least 1", setting="train.epochs"))
    train.epochs 0: must be at least 1
    """

    reported = False  # another process has shown it to the user

    def __init__(self, message: object = "", *, setting: str | None = None) -> None:
        super().__init__(one_line(str(message)))
        self.setting = setting

    @property
    def message(self) -> str:
        """The message without the setting's name."""
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.setting} {self.message}" if self.setting else self.message


class SpaceError(TissError):
    """The disk, a quota or a limit of file sizes: nothing is wrong with what was to be written."""


def one_line(text: str, longest: int = 2000) -> str:
    r"""`text` without line breaks or control characters, its middle left out where it is too long.

    >>> one_line("no class 'a\nb' in\x1b[2J it")
    "no class 'a b' in\\x1b[2J it"
    """
    text = _shortened(text, longest)
    text = " ".join(line.strip() for line in text.splitlines()).expandtabs(1)
    if text.isprintable():
        return text
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return _shortened(escaped, longest)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest // 2]} … {text[-longest // 3 :]}"


def suggest(word: str, choices: Iterable[str], what: str) -> str:
    """One sentence that says `word` is no `what`, with the nearest choice or, failing that, all of them.

    >>> suggest("mbi", ["ft", "mib", "tiss"], "method")
    "unknown method 'mbi': did you mean 'mib'?"
    """
    names = sorted(choices)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if near:
        return f"unknown {what} {word!r}: did you mean {near[0]!r}?"
    return f"unknown {what} {word!r}: choose one of {listed(names, 40)}"


def listed(names: Iterable[object], most: int = 6) -> str:
    """The names with commas; of many, the first ones and how many more there are.

    >>> listed(["cat", "dog", "cow"], 2)
    'cat, dog and 1 more'
    """
    words = list(map(str, names))
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
