"""The commands that the documentation shows, taken out of its pages.

A block of commands is fenced as `console`, and each command starts with "$ ". A comment on the line before a fence
says what the tests do with it: `<!-- run -->` runs its commands, in the order of the page, in one folder for each
page; `<!-- file: NAME -->` before a block of Python writes it there under that name. Commands without a comment are
only checked: the command and its flags must exist.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*?) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    kind: str
    note: str
    text: str

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command; a backslash at the end of a line goes on with the next."""
        joined = self.text.replace("\\\n", " ")
        lines = [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def pages() -> list[Path]:
    return [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.exists()]


def blocks_of(page: Path) -> list[Block]:
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["kind"], match["note"] or "", match["text"]) for match in found]


def runnable(page: Path) -> bool:
    return any(block.note == "run" for block in blocks_of(page))
