"""How runs were trained, in few words: what they share in one line, and who differs from it in what."""

from __future__ import annotations

from collections.abc import Sequence

from tiss.report.runs import Series

RECIPE = {
    "model.encoder": "encoder",
    "model.decoder": "decoder",
    "train.recipe": "recipe",
    "train.optimizer": "optimiser",
    "train.lr": "learning rate",
    "train.weight_decay": "weight decay",
    "train.warmup": "warm-up",
    "train.epochs": "epochs",
    "train.batch": "batch",
    "data.crop": "crop",
}
LATER = {"train.lr": "train.step_lr", "train.epochs": "train.step_epochs"}  # what later steps have of it


def recipe_lines(several: Sequence[Series]) -> list[str]:
    """What was trained how, in one line; then, by their labels, in what rows differ from that."""
    parts = [recipe_parts(series) for series in several]
    usual = max(parts, key=parts.count, default=[])
    lines = [" · ".join(usual)] if usual else []
    others: dict[str, list[str]] = {}
    for series, own in zip(several, parts, strict=True):
        different = [part for part in own if not any(f"{one},".startswith(f"{part},") for one in usual)]
        if different:
            others.setdefault(" · ".join(different), []).append(series.label)
    return lines + [f"{', '.join(labels)}: {text}" for text, labels in others.items()]


def recipe_parts(series: Series) -> list[str]:
    """The settings that matter most, each in words."""
    settings = series.first.settings
    parts = []
    for key, text in RECIPE.items():
        if settings.get(key) is None:
            continue
        later = None if series.at_once else settings.get(LATER.get(key, ""))
        more = f", in later steps {later}" if later is not None else ""
        parts.append(f"{text} {settings[key]}{more}")
    return parts
