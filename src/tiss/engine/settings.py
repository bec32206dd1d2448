"""A run's settings by dotted name, and which of them say what was done rather than where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from tiss.config import RunConfig, from_mapping, to_mapping
from tiss.engine.run_folder import MACHINE
from tiss.errors import TissError
from tiss.methods.base import METHODS, settings_from

PLACES = ("seed", "out", "base", "data.root", "lists", *(f"train.{name}" for name in (*MACHINE, "fused")))
WEIGHTS = (".safetensors", ".pth", ".pt", ".bin")


def all_settings(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings by dotted name, those that did not exist when it was made at their default.

    So a run from before an option was added and one from after it are still seeds of one another. What this version
    does not know, such as another's method, stays as it stands.
    """
    try:
        config = from_mapping(RunConfig, mapping)
        return flatten(to_mapping(replace(config, method=settings_from(config.method))))
    except TissError:
        return flatten(mapping)


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


def changed_settings(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a method that are not its defaults, by their own names; none of a method not known here.

    >>> changed_settings("tiss", {"method.tau": 0.1, "method.signed": False, "train.lr": 1.0})
    {'tau': 0.1}
    """
    try:
        usual = to_mapping(settings_from(method))
    except TissError:
        return {}
    found = {key: settings.get(f"method.{key}", value) for key, value in sorted(usual.items())}
    return {key: value for key, value in found.items() if value != usual[key]}


def what_was_done(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings that must agree for two runs to be seeds of one another."""
    kept = {key: value for key, value in sorted(settings.items()) if key not in PLACES}
    if "model.pretrained" in kept:
        kept["model.pretrained"] = last_name(kept["model.pretrained"])  # the file may have moved
    return kept


def identity(config: Mapping[str, Any]) -> str:
    """All of a complete configuration that says what was done, the seed among it; equal for equal runs."""
    settings = all_settings(config)
    kept = what_was_done(settings)
    if METHODS.get(settings["method.name"]).joint:  # there are no later steps
        kept = {key: value for key, value in kept.items() if not key.startswith("train.step_")}
    return json.dumps({**kept, "seed": settings["seed"]}, sort_keys=True, default=list)


def last_name(text: str | None) -> str | None:
    """The last part of what is surely a path; a hub's name stays whole.

    >>> last_name("/data/VOCdevkit"), last_name("timm/vit_small"), last_name("w/vit.safetensors")
    ('VOCdevkit', 'timm/vit_small', 'vit.safetensors')
    """
    if text is None or not (text.startswith(("/", "~", ".")) or text.endswith(WEIGHTS)):
        return text
    return PurePath(text).name or text
