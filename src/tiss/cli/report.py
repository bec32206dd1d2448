"""Prints the tables of finished runs: old, new and all classes, with and without the background, step by step; seeds of
one setting become mean ± deviation. RUN is a run folder, a record made by --collect, or a folder that holds several (a
grid, a demo). Where runs have a place in one of the paper's tables, that table follows, with the paper's rows beside
ours and how each was averaged. Also writes one self-contained HTML page with curves and predictions.
A folder of folders with records and an about.json (results/ of the repository) becomes one page with all benchmarks,
the paper's claims, and speed.
--table csv writes all tables as one, with one value per line, for pandas or a spreadsheet: the columns are table, data,
task, setup, protocol, holdout, source, method, architecture, backbone, step, average, column, added (the step that
added a class), value, deviation and seeds; a column that does not apply is empty.

Examples:
  tiss report runs/demo
  tiss report runs/voc-15-1-* --table latex --classes
  tiss report runs/grid --table csv > values.csv
  tiss report runs/grid --html report.html --images 500 --root VOCdevkit
  tiss report runs/grid --collect results/voc
  tiss report results
  tiss report --paper voc
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tiss.config import setting
from tiss.errors import TissError


@dataclass(frozen=True)
class Options:
    run: tuple[str, ...] = setting((), "run folders, records, or folders that hold several", positional=True)
    table: Literal["terminal", "markdown", "latex", "csv"] = setting(
        "terminal", "how tables are written; csv: all in one, one value per line"
    )
    paper: str | None = setting(
        None, "one of the paper's tables by name, or 'no' (None: those the runs fit into)"
    )
    html: str | None = setting(None, "page to write, or 'no' (None: report.html beside the runs)")
    collect: str | None = setting(None, "folder: only write each finished run into it as one small JSON file")
    docs: str | None = setting(None, "folder: write results.md, claims.md and contrast.md from RUN into it")
    gallery: int = setting(4, "test images to show with predictions; 0 for none", aliases=("pictures",))
    images: int = setting(0, "test images for the similarity figure (the paper: 500); 0 for none")
    root: str | None = setting(None, "where the data are now, if they have moved", sets="data.root")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")
    classes: bool = setting(False, "also the tables by class, and what each class has lost")


def run(options: Options) -> int:
    if not options.run and options.paper in (None, "no"):
        raise TissError(
            "RUN missing; usage: tiss report RUN... [options], for example: tiss report runs/demo"
        )
    if options.collect is not None:
        return collect_runs(options.run, Path(options.collect))
    return make_report(options)


def collect_runs(paths: Sequence[str], out: Path) -> int:
    """Writes finished runs as records; says which were left out."""
    from tiss.report.records import collect
    from tiss.report.runs import find_runs

    written, left_out = collect(find_runs(paths), out)
    for text in left_out:
        print(f"left out: {text}")
    print(f"{len(written)} runs in {out}")
    return 0


def report_collection(folder: Path, options: Options) -> int:
    """All benchmarks of a collection as a page, or the pages of docs/."""
    from tiss.report.render import print_table
    from tiss.report.results import load_benchmarks, task_tables, write_docs, write_results

    if options.docs:
        for path in write_docs(folder, Path(options.docs)):
            print(path)
        return 0
    for table in task_tables(load_benchmarks(folder)):
        print_table(table)
    if options.html != "no":
        print(f"page {write_results(folder, Path(options.html or folder / 'report.html'))}")
    return 0


def make_report(options: Options) -> int:
    from tiss.report.paper import fitting_tables, paper_table
    from tiss.report.render import print_table, render_tables
    from tiss.report.results import is_collection
    from tiss.report.runs import experiments, find_runs, load_results
    from tiss.report.tables import report_tables

    if len(options.run) == 1 and is_collection(Path(options.run[0])) and options.table == "terminal":
        return report_collection(Path(options.run[0]), options)
    if options.docs:
        raise TissError(
            f"takes one folder of folders with records, not {' '.join(options.run)}", setting="docs"
        )
    runs = find_runs(options.run)
    found = experiments(load_results(runs))
    tables = [table for experiment in found for table in report_tables(experiment, options.classes)]
    names = fitting_tables(found) if options.paper is None else [options.paper]
    tables += [paper_table(name, found) for name in names if name != "no"]
    page = options.html if options.html else None if options.table != "terminal" else _beside(runs)
    written = None
    if runs and page and page != "no":  # before the tables: if printing is cut short, the page is there
        from tiss.engine.device import choose_device
        from tiss.report.page import write_report

        written = write_report(
            runs,
            page,
            gallery=options.gallery,
            images=options.images,
            root=options.root,
            device=choose_device(options.device),
        )
    if options.table == "terminal":
        for table in tables:
            print_table(table)
    else:
        print(render_tables(tables, options.table), end="")
    if written is not None:
        print(f"page {written}", file=sys.stdout if options.table == "terminal" else sys.stderr)
    return 0


def _beside(runs: list[Path]) -> str | None:
    if not runs:
        return None
    return str(Path(os.path.commonpath([run.resolve().parent for run in runs])) / "report.html")
