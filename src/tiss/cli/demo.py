"""Draws a small data set of textured shapes and learns its classes in three steps with four methods: fine-tuning
(which forgets), MiB, TISS, and offline training on everything at once (the upper bound). No download, no GPU, less
than five minutes on two cores. Prints a table and writes one HTML page with curves and predictions.

Examples:
  tiss demo
  tiss demo --seeds 3 --out runs/demo-3-seeds
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tiss.config import setting
from tiss.errors import TissError

METHODS = ("ft", "mib", "tiss", "offline")


@dataclass(frozen=True)
class Options:
    out: str = setting("runs/demo", "folder for the runs and the report")
    seeds: int = setting(1, "number of seeds; with more than one the table shows mean ± deviation")
    resume: bool = setting(False, "resume a demo that was stopped")


def run(options: Options) -> int:
    from tiss.engine.grid import plan, work
    from tiss.engine.progress import TerminalReporter
    from tiss.engine.recipes import DEMO
    from tiss.report.page import write_report
    from tiss.report.render import print_results

    start = time.monotonic()
    out = Path(options.out)
    if out.exists() and any(out.iterdir()) and not options.resume:
        raise TissError(
            f"{out} is not empty: add --resume, choose another folder, or remove it", setting="out"
        )
    reporter = TerminalReporter()
    recipe = "recipe: " + ", ".join(f"{key} {value}" for key, value in DEMO.items())
    reporter.say(f"shapes: 8 classes in three steps; {recipe}")
    cells = plan({"axes": {"method": list(METHODS)}, "seeds": list(range(options.seeds))})
    state = work(cells, out, reporter)
    failed = [name for name, what in state.items() if what == "failed"]
    if failed:
        raise TissError(f"{', '.join(failed)} failed: see {out}/claims/*.failed.txt")
    runs = [cell.folder(out) for cell in cells]
    print_results(runs)
    print(recipe)
    page = write_report(runs, out / "report.html", title="tiss demo: shapes, 4 classes, then 2, then 2")
    print(f"{time.monotonic() - start:.0f} s; open {page}")
    return 0
