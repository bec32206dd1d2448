"""The table of recipes in docs/methods.md says what the recipes say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.pages import ROOT
from tiss.engine.recipes import recipe_values
from tiss.methods.base import METHODS
from tiss.models.encoder import encoder_defaults

ROWS = (
    "optimizer", "lr", "step_lr", "encoder_lr", "weight_decay", "warmup", "clip", "epochs", "batch",
)  # fmt: skip
COLUMNS = {
    "`paper`": ("paper", "vit_small_patch16_384"),
    "`tuned`, ViT": ("tuned", "vit_small_patch14_dinov2"),
    "`tuned`, Swin, SegFormer": ("tuned", "mit_b0"),
    "`tuned`, ResNet": ("tuned", "resnet50"),
    "`demo`": ("demo", "vit_demo_patch8"),
}


def cell(values: dict[str, Any], row: str) -> str:
    """One setting as the page writes it."""
    value = values.get(row)
    if row == "optimizer":
        return {"sgd": "SGD", "adamw": "AdamW"}[str(value)]
    if row == "epochs":
        return f"{value}, {values.get('step_epochs', value)}"
    return "–" if value is None else str(value)


def same(shown: str, expected: str) -> bool:
    try:
        return float(shown) == pytest.approx(float(expected))
    except ValueError:
        return shown == expected


def test_the_table_of_recipes() -> None:
    text = (ROOT / "docs/methods.md").read_text(encoding="utf-8").partition("\n## Recipes\n")[2]
    table = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    head, rows = [one.strip() for one in table[0][1:]], table[2 : 2 + len(ROWS)]
    assert head == list(COLUMNS)
    for index, (name, encoder) in enumerate(COLUMNS.values(), 1):
        values = recipe_values(name, "voc", encoder_defaults(encoder), METHODS.get("mib"))
        for row, shown in zip(ROWS, rows, strict=True):
            assert same(shown[index].strip(), cell(values, row)), (head[index - 1], shown[0])
