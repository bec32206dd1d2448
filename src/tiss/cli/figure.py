"""Draws a figure from finished runs (run folders, or folders that hold several) and writes it as SVG and PNG; the
numbers of the similarity figure as JSON too. KIND is one of steps, classes, forgetting, differences (to MiB),
confusion, predictions, features, similarity, several of them with commas, or `all`.

Examples:
  tiss figure steps runs/demo
  tiss figure similarity runs/voc-15-1-* --images 500 --root VOCdevkit
  tiss figure predictions,features runs/demo --gallery 2 --out figures
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tiss.config import REQUIRED, setting
from tiss.errors import TissError


@dataclass(frozen=True)
class Options:
    kind: str = setting(REQUIRED, "the figures to draw", positional=True)
    run: tuple[str, ...] = setting(REQUIRED, "run folders, or folders that hold several", positional=True)
    out: str = setting("figures", "folder for the files")
    gallery: int = setting(4, "test images for predictions and features", aliases=("pictures",))
    images: int = setting(500, "test images over which similarities are taken (the paper: 500)")
    root: str | None = setting(None, "where the data are now, if they have moved", sets="data.root")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")


def run(options: Options) -> int:
    from tiss.engine.device import choose_device
    from tiss.report.figures import KINDS, write_figures
    from tiss.report.runs import experiments, find_runs, load_results

    written = write_figures(
        experiments(load_results(find_runs(options.run))),
        Path(options.out),
        list(KINDS) if options.kind == "all" else options.kind.split(","),
        gallery=options.gallery,
        images=options.images,
        root=options.root,
        device=choose_device(options.device),
    )
    if not written:
        raise TissError(
            f"no {options.kind} figure can be drawn from these runs: their step folders are missing"
        )
    for path in written:
        print(path)
    return 0
