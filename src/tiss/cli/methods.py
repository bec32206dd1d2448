"""`tiss methods`: what there is, and which architectures each goes with."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from tiss.errors import TissError

FAMILIES = ("vit", "hierarchical", "cnn")
TITLES = {"vit": "ViT", "hierarchical": "Swin, SegFormer", "cnn": "CNN"}


def main(arguments: list[str]) -> int:
    """Prints the table."""
    if arguments in (["--help"], ["-h"]):
        print(
            "usage: tiss methods\n\nLists every method, what it minimises, and the architectures it goes with."
        )
        return 0
    if arguments:
        raise TissError(f"tiss methods takes no options, not {arguments[0]!r}")
    from tiss.methods.base import METHODS

    table = Table(title="methods", title_justify="left", show_edge=False, pad_edge=False)
    for heading in ("name", "what it does", *TITLES.values()):
        table.add_column(heading, justify="center" if heading in TITLES.values() else "left")
    for name in METHODS:
        method = METHODS.get(name)
        fits = ["yes" if family in method.families else "–" for family in FAMILIES]
        table.add_row(name, method.summary, *fits)
    Console().print(table)
    print("\ntiss run --method NAME --help shows a method's settings.")
    return 0
