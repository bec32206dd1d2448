"""`tiss demo`: five minutes that show what forgetting is and what stops it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tiss.cli.flags import flags_of, help_text, parse_flags
from tiss.config import from_mapping, setting
from tiss.errors import TissError

USAGE = "tiss demo [options]"
ABOUT = """
Draws a small data set of textured shapes and learns its classes in three steps with four methods: fine-tuning
(which forgets), MiB, TISS, and offline training on everything at once (the upper bound). No download, no GPU,
under five minutes on two cores. Prints a table and writes one HTML page with curves and predictions.
"""
EXAMPLES = """
tiss demo
tiss demo --seeds 3 --out runs/demo-3-seeds
"""
SWITCHES = {"resume": "go on where a stopped demo left off", "help": "this text"}
METHODS = ("ft", "mib", "tiss", "offline")


@dataclass(frozen=True)
class DemoOptions:
    out: str = setting("runs/demo", "folder for the runs and the report")
    seeds: int = setting(1, "how many seeds; with more than one the table shows mean ± deviation")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    flags = list(flags_of(DemoOptions))
    values, given, _ = parse_flags(arguments, flags, SWITCHES)
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    options = from_mapping(DemoOptions, values)
    out = Path(options.out)
    if out.exists() and any(out.iterdir()) and "resume" not in given:
        raise TissError(
            f"--out {out} is not empty: add --resume to go on, choose another folder, or remove it"
        )
    return run_demo(out, options.seeds)


def run_demo(out: Path, seeds: int) -> int:
    import time

    from tiss.engine.grid import plan
    from tiss.engine.grid_work import work
    from tiss.engine.progress import TerminalReporter
    from tiss.engine.recipes import DEMO
    from tiss.report.page import write_report
    from tiss.report.tables import print_results

    start = time.monotonic()
    reporter = TerminalReporter()
    recipe = "recipe: " + ", ".join(f"{key} {value}" for key, value in DEMO.items())
    reporter.say(f"shapes: 8 classes in three steps; {recipe}")
    table = {"axes": {"method": list(METHODS)}, "seeds": list(range(seeds))}
    cells = plan(table)
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
