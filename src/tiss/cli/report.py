"""`tiss report` and `tiss figure`: tables, a page and figures from finished runs."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tiss.config import REQUIRED, setting
from tiss.errors import TissError


@dataclass(frozen=True)
class Options:
    run: tuple[str, ...] = setting((), "run folders, records, or folders that hold several", positional=True)
    table: Literal["terminal", "markdown", "latex", "csv"] = setting("terminal", "how tables are written")
    paper: str | None = setting(None, "one of the paper's tables, or 'no' (None: those the runs fit into)")
    html: str | None = setting(None, "page to write, or 'no' (None: report.html beside the runs)")
    collect: str | None = setting(None, "folder: only write each finished run into it as one small JSON file")
    gallery: int = setting(4, "test images to show with predictions; 0 for none", aliases=("pictures",))
    images: int = setting(0, "test images for the similarity figure (the paper: 500); 0 for none")
    root: str | None = setting(None, "where the data are now, if they have moved", sets="data.root")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")
    classes: bool = setting(False, "also the tables by class, and what each class has lost")
    nonzero: bool = setting(False, "means over classes of IoU above 0, as MBS's code has them; tables only")


def report(options: Options) -> int:
    """Prints the tables of finished runs: old, new and all classes, with and without the background, step by step;
    seeds of one setting become mean ± deviation. RUN is a run folder, a record made by --collect, or a folder
    that holds several (a grid, a demo). Where runs have a place in one of the paper's tables, that table follows,
    with the paper's rows beside ours and how each was averaged. Also writes one self-contained HTML page with
    curves and predictions.
    A folder of folders with records and an about.json (results/ of the repository) becomes one page with all
    benchmarks, similarities and speed.
    --table csv writes all tables as one, with one value per line, for pandas or a spreadsheet: the columns are
    table, data, task, setup, protocol, holdout, source, method, architecture, backbone, step, average, column, added
    (the step that added a class), value, deviation and seeds; a column that does not apply is empty.

    Examples:
      tiss report runs/demo
      tiss report runs/voc-15-1-* --table latex --classes
      tiss report runs/grid --table csv > values.csv
      tiss report runs/grid --html report.html --images 500 --root VOCdevkit
      tiss report runs/grid --collect results/voc
      tiss report results
      tiss report --paper voc
    """
    if not options.run and options.paper in (None, "no"):
        raise TissError("RUN missing; usage: tiss report RUN... [options], such as: tiss report runs/demo")
    if options.collect is not None:
        return collect_runs(options.run, Path(options.collect))
    from tiss.report.pages import is_collection

    plain = options.table == "terminal" and not options.nonzero
    if len(options.run) == 1 and is_collection(Path(options.run[0])) and plain:
        return report_collection(Path(options.run[0]), options.html)
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


def report_collection(folder: Path, html: str | None) -> int:
    """All benchmarks of a collection as a page."""
    from tiss.report.pages import load_benchmarks, task_tables, write_results
    from tiss.report.render import print_table

    for table in task_tables(load_benchmarks(folder)):
        print_table(table)
    if html != "no":
        print(f"page {write_results(folder, Path(html or folder / 'report.html'))}")
    return 0


def make_report(options: Options) -> int:
    from tiss.evaluation.scores import without_zeros
    from tiss.report.pages import write_report
    from tiss.report.paper import fitting_tables, paper_table
    from tiss.report.render import print_table, render_tables
    from tiss.report.runs import experiments, find_runs, load_results
    from tiss.report.tables import report_tables

    terminal = options.table == "terminal"
    runs = find_runs(options.run)
    results = load_results(runs)
    if options.nonzero:  # neither the page nor the paper's tables could say so in every place
        results = [replace(one, values=without_zeros(one.values)) for one in results]
        options = replace(options, html=options.html or "no", paper=options.paper or "no")
        if (options.html, options.paper) != ("no", "no"):
            raise TissError("makes tables of the runs only: leave out html and paper", setting="nonzero")
    found = experiments(results)
    tables = [table for experiment in found for table in report_tables(experiment, options.classes)]
    names = fitting_tables(found) if options.paper is None else [options.paper]
    tables += [paper_table(name, found) for name in names if name != "no"]
    page = options.html
    if page is None and runs and terminal:
        page = os.path.join(os.path.commonpath([run.resolve().parent for run in runs]), "report.html")
    if runs and page and page != "no":  # before the tables: if printing is cut short, the page is there
        write_report(runs, page, **drawing(options))
    for table in tables if terminal else ():
        print_table(table)
    if not terminal:
        print(render_tables(tables, options.table), end="")
    if runs and page and page != "no":
        print(f"page {page}", file=sys.stdout if terminal else sys.stderr)
    return 0


def drawing(options: "Options | FigureOptions") -> dict[str, Any]:
    """What is drawn with the runs' models, and where."""
    from tiss.engine.device import choose_device

    asked = {name: getattr(options, name) for name in ("gallery", "images", "root")}
    return asked | {"device": choose_device(options.device)}


@dataclass(frozen=True)
class FigureOptions:
    kind: str = setting(REQUIRED, "the figures to draw", positional=True)
    run: tuple[str, ...] = setting(REQUIRED, "run folders, or folders that hold several", positional=True)
    out: str = setting("figures", "folder for the files")
    gallery: int = setting(4, "test images for predictions and features", aliases=("pictures",))
    images: int = setting(500, "test images over which similarities are taken (the paper: 500)")
    root: str | None = setting(None, "where the data are now, if they have moved", sets="data.root")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")


def figure(options: FigureOptions) -> int:
    """Draws a figure from finished runs (run folders, or folders that hold several) and writes it as SVG and PNG;
    the numbers of the similarity figure as JSON too. KIND is one of steps, classes, forgetting, differences (to
    MiB), confusion, predictions, features, similarity, several of them with commas, or `all`.

    Examples:
      tiss figure steps runs/demo
      tiss figure similarity runs/voc-15-1-* --images 500 --root VOCdevkit
      tiss figure predictions,features runs/demo --gallery 2 --out figures
    """
    from tiss.report.pages import KINDS, write_figures
    from tiss.report.runs import experiments, find_runs, load_results

    found = experiments(load_results(find_runs(options.run)))
    kinds = list(KINDS) if options.kind == "all" else options.kind.split(",")
    written = write_figures(found, Path(options.out), kinds, **drawing(options))
    if not written:
        raise TissError(f"no {options.kind} figure can be drawn: the runs' step folders are missing")
    for path in written:
        print(path)
    return 0
