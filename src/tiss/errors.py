"""The one error that a user is meant to see: a single line that names the file or flag and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TissError(Exception):
    """A mistake in the input. The command line prints it as one line and exits with code 2."""


def suggest(word: str, choices: Iterable[str], what: str) -> str:
    """One sentence that says `word` is no `what`, with the nearest choice or, failing that, all of them.

    >>> suggest("mbi", ["ft", "mib", "tiss"], "method")
    "unknown method 'mbi': did you mean 'mib'?"
    """
    names = sorted(choices)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if near:
        return f"unknown {what} {word!r}: did you mean {near[0]!r}?"
    listed = ", ".join(names[:40]) + (", …" if len(names) > 40 else "")
    return f"unknown {what} {word!r}: choose one of {listed}"
