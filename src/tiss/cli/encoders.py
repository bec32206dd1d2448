"""Lists every encoder with its size; timm's names work too if timm is installed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """None."""


def run(options: Options) -> int:
    from tiss.cli.flags import print_table
    from tiss.models.build import list_encoders

    rows = []
    for info in list_encoders():
        count = info.parameters
        size = f"{count / 1e6:.1f} M" if count >= 1e5 else f"{count / 1e3:.1f} k"
        rows.append(
            (info.name, info.family, size, str(info.stride), str(info.image_size), info.default_decoder)
        )
    print_table("encoders", ("name", "family", ">parameters", ">stride", ">image size", "decoder"), rows)
    print("\nAny other encoder of timm works by its name: pip install 'tiss[timm]'.")
    return 0
