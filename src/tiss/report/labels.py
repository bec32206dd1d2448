"""How the series of a table or figure are named and drawn: the same everywhere, and never by colour alone."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tiss.engine.run_folder import changed_settings
from tiss.files import read_yaml

if TYPE_CHECKING:
    from tiss.report.runs import Result

MARKERS = ("o", "s", "^", "D", "v")  # of a method's further series, beyond one for each line


class Look(NamedTuple):
    """How a series is drawn."""

    colour: str
    marker: str | tuple[int, ...]  # a letter, or sides, kind and angle of a polygon or star
    line: str | tuple[int, tuple[float, ...]]  # as matplotlib has it
    filled: bool = True

    @property
    def marked(self) -> dict[str, Any]:
        """Colour and marker for `plot` and `errorbar`."""
        return {"color": self.colour, "marker": self.marker, "mfc": self.colour if self.filled else "none"}


def _look(colour: str, marker: Any, line: str) -> Look:
    return Look(colour, marker if isinstance(marker, str) else tuple(marker), DASHES[line])


_known = read_yaml(Path(__file__).with_name("styles.yaml"))
DASHES = {name: (0, tuple(dashes)) if dashes else "solid" for name, dashes in _known["lines"].items()}
LINES = list(DASHES.values())[:4]  # of further series of one method
STYLES = {method: _look(*look) for method, look in _known["methods"].items()}
SPARE = [_look(*look) for look in _known["spare"]]


def looks_of(methods: Sequence[str]) -> list[Look]:
    """A look for each of `methods`: a built-in one's own, in every figure.

    Another's comes from what is left, by its name, so that it too is the same in every figure, unless two of one figure
    ask for the same. A method named again (other settings, another encoder) keeps its colour, with hollow markers and
    another line.
    """
    given, free = dict(STYLES), list(SPARE)
    for method in sorted(set(methods) - set(STYLES)):
        wanted = SPARE[zlib.crc32(method.encode()) % len(SPARE)]
        given[method] = wanted if wanted in free or not free else free[0]
        free = [one for one in free if one != given[method]]
    found = []
    for place, method in enumerate(methods):
        look, number = given[method], methods[:place].count(method)
        if number:
            lines = [line for line in LINES if line != look.line]
            markers = [look.marker, *(marker for marker in MARKERS if marker != look.marker)]
            turn, line = divmod(number - 1, len(lines))
            look = Look(look.colour, markers[turn % len(markers)], lines[line], filled=False)
        found.append(look)
    return found


def labels_of(results: Sequence[Result]) -> list[str]:
    """A label for each, no two alike: a method's title, and in brackets the least that tells it apart.

    Where encoders differ, each label names its own. Whatever comes next is added only to labels that are still alike:
    the decoder, what differs from the method's defaults, all other settings, a number.
    """
    several = len({one.encoder for one in results}) > 1
    parts = [[one.encoder] if several else [] for one in results]
    for stage in range(4):
        alike: dict[str, list[int]] = {}
        for place, (one, part) in enumerate(zip(results, parts, strict=True)):
            alike.setdefault(_label(one, part), []).append(place)
        for places in alike.values():
            told = _distinctions([results[place] for place in places])[stage] if len(places) > 1 else []
            for place, more in zip(places, told, strict=False):
                parts[place] += more
    return [_label(one, part) for one, part in zip(results, parts, strict=True)]


def _label(result: Result, parts: Sequence[str]) -> str:
    return f"{result.title} ({', '.join(parts)})" if parts else result.title


def _distinctions(alike: Sequence[Result]) -> list[list[list[str]]]:
    """What may tell results apart: decoder, settings of the method, all settings, a number."""
    decoders = [[one.decoder] if len({other.decoder for other in alike}) > 1 else [] for one in alike]
    changed = [changed_settings(one.method, one.settings) for one in alike]
    own = [[setting_text(name, value) for name, value in one.items()] for one in changed]
    known = [one.done for one in alike if one.done]
    keys = sorted({key for done in known for key in done})
    keys = [key for key in keys if len({str(done.get(key)) for done in known}) > 1]
    names = {key: key.removeprefix("method.").removeprefix("train.") for key in keys}
    every = [[setting_text(name, one.done.get(key)) for key, name in names.items()] for one in alike]
    every = [text if one.done else ["settings not kept"] for one, text in zip(alike, every, strict=True)]
    return [decoders, own, every, [[f"variant {number}"] for number in range(1, len(alike) + 1)]]


def setting_text(name: str, value: Any) -> str:
    """A setting in few words.

    >>> setting_text("tau", 0.1), setting_text("signed", True), setting_text("divide", False)
    ('tau 0.1', 'signed', 'not divide')
    """
    if value is None or isinstance(value, bool):
        return {None: f"no {name}", True: name, False: f"not {name}"}[value]
    if isinstance(value, (list, tuple)):
        return f"{name} {'/'.join(map(str, value))}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def natural(label: str) -> list[str | float]:
    """A key that sorts labels with their numbers by size.

    >>> sorted(["cd 10", "cd 2", "cd 0.5"], key=natural)
    ['cd 0.5', 'cd 2', 'cd 10']
    """
    pieces = re.split(r"(\d+(?:\.\d+)?)", label)
    return [float(piece) if index % 2 else piece for index, piece in enumerate(pieces)]
