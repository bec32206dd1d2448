"""`tiss encoders`: the encoders by name."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from tiss.errors import TissError


def main(arguments: list[str]) -> int:
    """Prints the table."""
    if arguments in (["--help"], ["-h"]):
        print(
            "usage: tiss encoders\n\nLists every encoder with its size; timm's names work too where timm is installed."
        )
        return 0
    if arguments:
        raise TissError(f"tiss encoders takes no options, not {arguments[0]!r}")
    from tiss.models.build import list_encoders

    table = Table(title="encoders", title_justify="left", show_edge=False, pad_edge=False)
    for heading in ("name", "family", "parameters", "stride", "image size", "decoder"):
        right = heading in ("parameters", "stride", "image size")
        table.add_column(heading, justify="right" if right else "left", no_wrap=heading == "name")
    for info in list_encoders():
        size = (
            f"{info.parameters / 1e6:.1f} M" if info.parameters >= 1e5 else f"{info.parameters / 1e3:.1f} k"
        )
        table.add_row(
            info.name, info.family, size, str(info.stride), str(info.image_size), info.default_decoder
        )
    Console().print(table)
    print("\nAny other encoder of timm works by its name: pip install 'tiss[timm]'.")
    return 0
