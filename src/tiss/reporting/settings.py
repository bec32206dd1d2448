"""A run's settings by dotted name, and which of them say what was done rather than where."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from tiss.engine.run_folder import MACHINE

PLACES = ("seed", "out", "base", "data.root", "lists", *(f"train.{name}" for name in (*MACHINE, "fused")))
WEIGHTS = (".safetensors", ".pth", ".pt", ".bin")


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted names.

    >>> flatten({"train": {"lr": 1.0}, "seed": 3})
    {'train.lr': 1.0, 'seed': 3}
    """
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, name + ".")
        else:
            flat[name] = value
    return flat


def what_was_done(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings that must agree for two runs to be seeds of one another."""
    kept = {key: value for key, value in sorted(settings.items()) if key not in PLACES}
    if "model.pretrained" in kept:
        kept["model.pretrained"] = last_name(kept["model.pretrained"])  # the file may have moved
    return kept


def last_name(text: str | None) -> str | None:
    """The last part of what is surely a path; a hub's name stays whole.

    >>> last_name("/data/VOCdevkit"), last_name("timm/vit_small"), last_name("w/vit.safetensors")
    ('VOCdevkit', 'timm/vit_small', 'vit.safetensors')
    """
    if text is None or not (text.startswith(("/", "~", ".")) or text.endswith(WEIGHTS)):
        return text
    return PurePath(text).name or text
