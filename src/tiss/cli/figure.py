"""`tiss figure`: the figures of finished runs as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tiss.cli.flags import flags_of, help_text, own_names, parse_flags
from tiss.config import from_mapping, setting
from tiss.errors import TissError

USAGE = "tiss figure KIND RUN... [options]"
ABOUT = """
Draws a figure from finished runs (run folders, or folders that hold several) and writes it as SVG and PNG; the
numbers of the similarity figure as JSON too. KIND is one of steps, classes, forgetting, confusion, predictions,
features, similarity, or several with commas between, or `all`.
"""
EXAMPLES = """
tiss figure steps runs/demo
tiss figure similarity runs/voc-15-1-* --images 500 --root VOCdevkit
tiss figure predictions,features runs/demo --pictures 2 --out figures
"""
SWITCHES = {"help": "this text"}


@dataclass(frozen=True)
class FigureOptions:
    out: str = setting("figures", "folder for the files")
    pictures: int = setting(4, "test pictures for predictions and features")
    images: int = setting(500, "test pictures over which similarities are taken (the paper: 500)")
    root: str | None = setting(None, "where the data lie now, if they have moved")
    device: str = setting("auto", "auto, cpu, cuda or mps")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    flags = list(flags_of(FigureOptions))
    values, given, rest = parse_flags(arguments, flags, SWITCHES, positional="KIND RUN...")
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    if len(rest) < 2:
        raise TissError("tiss figure takes a kind and run folders, for example: tiss figure steps runs/demo")
    return draw(rest[0], rest[1:], from_mapping(FigureOptions, values))


@own_names(FigureOptions)
def draw(kinds: str, paths: list[str], options: FigureOptions) -> int:
    from tiss.engine.world import choose_device
    from tiss.report.figures import KINDS, write_figures
    from tiss.report.runs import experiments, find_runs, load_results

    written = write_figures(
        experiments(load_results(find_runs(paths))),
        Path(options.out),
        list(KINDS) if kinds == "all" else kinds.split(","),
        pictures=options.pictures,
        images=options.images,
        root=options.root,
        device=choose_device(options.device),
    )
    if not written:
        raise TissError(f"no {kinds} figure can be drawn from these runs: it needs their step folders")
    for path in written:
        print(path)
    return 0
