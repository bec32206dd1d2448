"""`tiss report`: tables and a page from finished runs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tiss.cli.flags import flags_of, help_text, own_names, parse_flags
from tiss.config import from_mapping, setting
from tiss.errors import TissError

USAGE = "tiss report RUN... [options]"
ABOUT = """
Reads finished runs (run folders, records that --collect has made of them, or folders that hold several: a grid, a
demo) and prints their tables: old, new and all classes, with and without the background, step by step; seeds of one
setting become mean ± deviation. Where the runs have a place in one of the paper's tables, that table follows, with
the paper's rows beside ours and a word on how each was averaged. Writes one self-contained HTML page with curves and
predictions as well.
--table csv writes one table over all of these, for pandas or a spreadsheet: a line a figure, with the columns
table, data, task, setup, protocol, holdout, source, method, architecture, backbone, step, average, column, learnt (the
step that brought a class), value, deviation and seeds; empty where a column says nothing about a figure.
"""
EXAMPLES = """
tiss report runs/demo
tiss report runs/voc-15-1-* --table latex --classes
tiss report runs/grid --table csv > figures.csv
tiss report runs/grid --html report.html --images 500 --root VOCdevkit
tiss report runs/grid --collect results/voc
tiss report --paper voc
"""
SWITCHES = {"classes": "also the tables by class, and what each class has lost", "help": "this text"}


@dataclass(frozen=True)
class ReportOptions:
    table: Literal["terminal", "markdown", "latex", "csv"] = setting(
        "terminal", "how tables are written; csv: all in one, a line a figure"
    )
    paper: str | None = setting(
        None, "one of the paper's tables by name, or 'no' (None: those the runs fit into)"
    )
    html: str | None = setting(None, "page to write, or 'no' (None: report.html beside the runs)")
    collect: str | None = setting(
        None, "folder: only write each finished run into it as one small JSON file, for keeping"
    )
    pictures: int = setting(4, "test pictures to show with predictions; 0 for none")
    images: int = setting(0, "test pictures for the similarity figure (the paper takes 500); 0 for none")
    root: str | None = setting(None, "where the data lie now, if they have moved")
    device: str = setting("auto", "auto, cpu, cuda or mps")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    flags = list(flags_of(ReportOptions))
    values, given, rest = parse_flags(arguments, flags, SWITCHES, positional="RUN")
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    options = from_mapping(ReportOptions, values)
    if not rest and options.paper in (None, "no"):
        raise TissError("tiss report takes run folders, for example: tiss report runs/demo")
    if options.collect is not None:
        return collect_runs(rest, Path(options.collect))
    return make_report(rest, options, "classes" in given)


def collect_runs(paths: list[str], out: Path) -> int:
    """Keeps finished runs as records; says which were left out."""
    from tiss.report.records import collect
    from tiss.report.runs import find_runs

    written, left_out = collect(find_runs(paths), out)
    for text in left_out:
        print(f"left out: {text}")
    print(f"{len(written)} runs in {out}")
    return 0


@own_names(ReportOptions)
def make_report(paths: list[str], options: ReportOptions, classes: bool) -> int:
    from tiss.report.paper_tables import fitting_tables, paper_table
    from tiss.report.render import print_table, render
    from tiss.report.runs import experiments, find_runs, load_results
    from tiss.report.tables import report_tables

    runs = find_runs(paths)
    found = experiments(load_results(runs))
    tables = [table for experiment in found for table in report_tables(experiment, classes)]
    names = (
        fitting_tables(found) if options.paper is None else [] if options.paper == "no" else [options.paper]
    )
    tables += [paper_table(name, found) for name in names]
    page = options.html if options.html else None if options.table != "terminal" else _beside(runs)
    written = None
    if runs and page and page != "no":  # before the tables: who reads only their head still has the page
        from tiss.engine.world import choose_device
        from tiss.report.page import write_report

        written = write_report(
            runs,
            page,
            pictures=options.pictures,
            images=options.images,
            root=options.root,
            device=choose_device(options.device),
        )
    if options.table == "terminal":
        for table in tables:
            print_table(table)
    else:
        print(render(tables, options.table), end="")
    if written is not None:
        print(f"page {written}", file=sys.stdout if options.table == "terminal" else sys.stderr)
    return 0


def _beside(runs: list[Path]) -> str | None:
    if not runs:
        return None
    return str(Path(os.path.commonpath([run.resolve().parent for run in runs])) / "report.html")
