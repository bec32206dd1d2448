"""Lists every method, what it minimises, and the encoders that it works with."""

from __future__ import annotations

from dataclasses import dataclass

FAMILIES = {"vit": "ViT", "hierarchical": "Swin, SegFormer", "cnn": "CNN"}


@dataclass(frozen=True)
class Options:
    """None."""


def run(options: Options) -> int:
    from tiss.cli.flags import print_table
    from tiss.methods.base import METHODS

    rows = []
    for name in METHODS:
        method = METHODS.get(name)
        rows.append((name, method.summary, *("yes" if one in method.families else "–" for one in FAMILIES)))
    print_table("methods", ("name", "what it does", *FAMILIES.values()), rows)
    print("\ntiss run --method NAME --help shows a method's settings.")
    return 0
