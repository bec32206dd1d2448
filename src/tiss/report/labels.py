"""Labels of series: a method's title, and in brackets the least that tells variants of it apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiss.engine.settings import changed_settings

UNKNOWN = "settings not kept"


@dataclass(frozen=True)
class Variant:
    """What can tell a series from another of the same title."""

    title: str
    method: str
    encoder: str
    decoder: str
    settings: Mapping[str, Any]  # by dotted name, those that say what was done


def labels_of(variants: Sequence[Variant]) -> list[str]:
    """A label for each, no two alike.

    Where encoders differ, each label names its own. Whatever comes next is added only to labels that are still alike:
    the decoder, what differs from the method's defaults, all other settings, a number.
    """
    encoders = {variant.encoder for variant in variants}
    parts = [[variant.encoder] if len(encoders) > 1 else [] for variant in variants]
    for stage in (_decoders, _method_settings, _other_settings, _numbers):
        alike: dict[str, list[int]] = {}
        for index, variant in enumerate(variants):
            alike.setdefault(_label(variant, parts[index]), []).append(index)
        for places in alike.values():
            if len(places) > 1:
                for index, more in zip(places, stage([variants[i] for i in places]), strict=True):
                    parts[index] += more
    return [_label(variant, part) for variant, part in zip(variants, parts, strict=True)]


def network_labels(variants: Sequence[Variant]) -> list[str]:
    """Labels for a table that has columns for encoder and decoder: alike only where those differ."""
    labels = [""] * len(variants)
    for network in {(variant.encoder, variant.decoder) for variant in variants}:
        places = [i for i, variant in enumerate(variants) if (variant.encoder, variant.decoder) == network]
        for place, label in zip(places, labels_of([variants[i] for i in places]), strict=True):
            labels[place] = label
    return labels


def _label(variant: Variant, parts: Sequence[str]) -> str:
    return f"{variant.title} ({', '.join(parts)})" if parts else variant.title


def _decoders(alike: Sequence[Variant]) -> list[list[str]]:
    return [[one.decoder] if len({other.decoder for other in alike}) > 1 else [] for one in alike]


def _method_settings(alike: Sequence[Variant]) -> list[list[str]]:
    return [
        [setting_text(key, value) for key, value in changed_settings(one.method, one.settings).items()]
        for one in alike
    ]


def _other_settings(alike: Sequence[Variant]) -> list[list[str]]:
    known = [one.settings for one in alike if one.settings]
    keys = sorted({key for settings in known for key in settings})
    keys = [key for key in keys if len({str(settings.get(key)) for settings in known}) > 1]
    short = [key.removeprefix("method.").removeprefix("train.") for key in keys]
    return [
        [setting_text(name, one.settings.get(key)) for name, key in zip(short, keys, strict=True)]
        if one.settings
        else [UNKNOWN]
        for one in alike
    ]


def _numbers(alike: Sequence[Variant]) -> list[list[str]]:
    return [[f"variant {number}"] for number in range(1, len(alike) + 1)]


def setting_text(name: str, value: Any) -> str:
    """A setting in few words.

    >>> setting_text("tau", 0.1), setting_text("signed", True), setting_text("divide", False)
    ('tau 0.1', 'signed', 'not divide')
    """
    if value is None:
        return f"no {name}"
    if isinstance(value, bool):
        return name if value else f"not {name}"
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
