"""Names of series: a method's name, and in brackets the least that tells variants of it apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiss.engine.settings import changed_settings

UNKNOWN = "settings not kept"


@dataclass(frozen=True)
class Variant:
    """What can tell a series from another of the same name."""

    name: str  # of the method, as the field writes it
    method: str
    encoder: str
    decoder: str
    settings: Mapping[str, Any]  # by dotted name, those that say what was done


Stage = Callable[[Sequence[Variant]], list[list[str]]]


def labels_of(variants: Sequence[Variant]) -> list[str]:
    """A label for each, no two alike.

    Where encoders differ, each names its own (the training that follows from it is not listed). Whatever is asked next
    is asked only of those that still have the same label: decoder, what differs from the method's defaults, the rest.
    """
    parts = _where_different([variant.encoder for variant in variants])
    for stage in (_decoders, _method_settings, _other_settings, _numbers):
        clashes: dict[str, list[int]] = {}
        for index, variant in enumerate(variants):
            clashes.setdefault(_written(variant.name, parts[index]), []).append(index)
        for alike in clashes.values():
            if len(alike) > 1:
                for index, more in zip(alike, stage([variants[i] for i in alike]), strict=True):
                    parts[index] += more
    return [_written(variant.name, part) for variant, part in zip(variants, parts, strict=True)]


def short_labels(variants: Sequence[Variant]) -> list[str]:
    """Labels for a table that has columns for encoder and decoder: alike only where those differ."""
    labels = [""] * len(variants)
    for network in {(variant.encoder, variant.decoder) for variant in variants}:
        places = [i for i, variant in enumerate(variants) if (variant.encoder, variant.decoder) == network]
        for place, label in zip(places, labels_of([variants[i] for i in places]), strict=True):
            labels[place] = label
    return labels


def _written(name: str, parts: Sequence[str]) -> str:
    return f"{name} ({', '.join(parts)})" if parts else name


def _decoders(alike: Sequence[Variant]) -> list[list[str]]:
    return _where_different([variant.decoder for variant in alike])


def _where_different(names: Sequence[str]) -> list[list[str]]:
    return [[name] if len(set(names)) > 1 else [] for name in names]


def _method_settings(alike: Sequence[Variant]) -> list[list[str]]:
    return [
        [written_setting(key, value) for key, value in changed_settings(one.method, one.settings).items()]
        for one in alike
    ]


def _other_settings(alike: Sequence[Variant]) -> list[list[str]]:
    known = [one.settings for one in alike if one.settings]
    keys = sorted({key for settings in known for key in settings})
    keys = [key for key in keys if len({str(settings.get(key)) for settings in known}) > 1]
    return [
        [written_setting(_short(key), one.settings.get(key)) for key in keys] if one.settings else [UNKNOWN]
        for one in alike
    ]


def _numbers(alike: Sequence[Variant]) -> list[list[str]]:
    return [[f"variant {number}"] for number in range(1, len(alike) + 1)]


def _short(key: str) -> str:
    """A dotted name as a label has it: `train.lr` is `lr`, but `eval.batch` is not `train.batch`."""
    return key.removeprefix("method.").removeprefix("train.")


def written_setting(name: str, value: Any) -> str:
    """A setting in few words.

    >>> written_setting("tau", 0.1), written_setting("signed", True), written_setting("divide", False)
    ('tau 0.1', 'signed', 'not divide')
    """
    if value is None:
        return f"no {name}"
    if isinstance(value, bool):
        return name if value else f"not {name}"
    if isinstance(value, float):
        return f"{name} {value:g}"
    if isinstance(value, (list, tuple)):
        return f"{name} {'/'.join(map(str, value))}"
    return f"{name} {value}"


def natural(label: str) -> list[str | float]:
    """A key that sorts labels with their numbers by size.

    >>> sorted(["cd 10", "cd 2", "cd 0.5"], key=natural)
    ['cd 0.5', 'cd 2', 'cd 10']
    """
    pieces = re.split(r"(\d+(?:\.\d+)?)", label)
    return [float(piece) if index % 2 else piece for index, piece in enumerate(pieces)]
