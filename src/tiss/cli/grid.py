"""`tiss grid`, `tiss tune` and `tiss demo`: tables of runs."""

import sys
import time
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from tiss.cli.flags import read_yaml
from tiss.config import merge, setting
from tiss.errors import TissError, suggest


@dataclass(frozen=True)
class TableOptions:
    file: str | None = setting(None, "YAML file, or one of the paper's tables", positional=True)
    out: str | None = setting(None, "grid folder (None: runs/<name of the file>)")
    root: str | None = setting(None, "folder of the data set, for every run", sets="data.root")
    seeds: tuple[int, ...] | None = setting(None, "seeds instead of the file's, with commas")
    pretrained: str | None = setting(None, "encoder weights, for every run", sets="model.pretrained")


@dataclass(frozen=True)
class Options(TableOptions):
    done: str | None = setting(None, "folder of records (tiss report --collect) of runs to leave out")
    list: bool = setting(False, "print each run as a tiss run command, for any scheduler, and stop")
    tables: bool = setting(False, "list the paper's tables and stop")


def grid(options: Options) -> int:
    """Does every run of a table, each once: equal first steps are trained once and shared, finished runs are
    skipped, and a failed run does not stop the others. Start the same command on any number of machines that share the
    folder. Tables with the same --out share first steps and identical runs.

    FILE is a YAML file with `defaults` (as in a run's configuration), `runs` (a list of differences), `axes` (key →
    list, all combinations) and `seeds`; or the name of one of the paper's tables, which --tables lists.

    Examples:
      tiss grid mine.yaml --out runs/mine
      tiss grid voc --root VOCdevkit --seeds 0,1,2 --out runs/voc
      tiss grid mine.yaml --out runs/mine --done results/mine    # on another machine: only what is not recorded yet
      tiss grid 15-1o --root VOCdevkit --list
    """
    if options.tables:
        for name in tables():
            print(f"{name:<12} {load_table(name).get('about', '')}")
        return 0
    if options.file is None:
        raise TissError("FILE missing; usage: tiss grid FILE [options], for example: tiss grid voc --list")
    from tiss.engine.grid import check_table, commands, plan, work
    from tiss.engine.progress import TerminalReporter

    table = load_table(options.file)
    check_table(table)
    cells = plan(with_options(table, options))
    out = Path(options.out or Path("runs") / Path(options.file).stem)
    if options.done:
        cells = without_recorded(cells, Path(options.done))
    if options.list:
        print("\n".join(commands(cells, out)))
        return 0
    state = work(cells, out, TerminalReporter())
    print(
        f"{sum(one != 'failed' for one in state.values())} runs done in {out}; tiss report {out} makes the tables"
    )
    check_done(state, out)
    return 0


def check_done(state: dict[str, str], out: Path) -> None:
    failed = [name for name, value in state.items() if value == "failed"]
    if failed:
        raise TissError(f"{len(failed)} run(s) failed: {', '.join(failed)}; see {out}/claims/*.failed.txt")


def without_recorded(cells: list[Any], folder: Path) -> list[Any]:
    """The cells without a record: a grid can resume on another machine."""
    from tiss.report.records import recorded

    known = recorded(folder)
    left = [cell for cell in cells if cell.identity not in known]
    # not to stdout, which may go to a scheduler
    print(f"{len(cells) - len(left)} of {len(cells)} runs are in {folder} already", file=sys.stderr)
    return left


def with_options(table: dict[str, Any], options: TableOptions) -> dict[str, Any]:
    """The table with the command line's data folder, weights and seeds."""
    over: dict[str, Any] = {"data": {"root": options.root}} if options.root else {}
    if options.pretrained:
        over["model"] = {"pretrained": options.pretrained}
    table = {**table, "defaults": merge(table.get("defaults") or {}, over)}
    return {**table, "seeds": [*options.seeds]} if options.seeds else table


def tables() -> list[str]:
    """Names of the paper's tables for which the package has a grid."""
    names = (path.name for path in (files("tiss") / "grids").iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def load_table(name: str) -> dict[str, Any]:
    """A grid from a file, or one of the package's own by its name."""
    if Path(name).suffix in (".yaml", ".yml"):
        return read_yaml(name, "tiss grid")
    if name not in tables():
        raise TissError(suggest(name, tables(), "table (or give a .yaml file)"))
    return read_yaml(str(files("tiss") / "grids" / f"{name}.yaml"))


@dataclass(frozen=True)
class TuneOptions(TableOptions):
    out: str | None = setting(None, "folder of the trials (None: runs/<name of the file>-tune)")
    holdout: float = setting(0.2, "share of the training images that is held out and chooses")
    trials: int | None = setting(
        None, "trials per method, the grid's own settings among them (None: tune.trials, or 8)"
    )


def tune(options: TuneOptions) -> int:
    """Gives each method of a grid the same number of trials over its own knobs: the learning rate of later steps and
    its main weights. The first trial has the grid's settings, the others cover the knobs' ranges. Held-out training
    images choose, by the mIoU of all classes after the last step; the test set is never read. Only the first seed is
    tried. Ctrl-C and the same command resumes; several machines may share the folder, as with tiss grid.

    Writes tuned.yaml (the same grid with the settings found, for tiss grid), tune.html (all trials) and tune.json.

    A grid may set the number of trials and a method's knobs. Two numbers are a range, which is covered on a logarithmic
    scale: of train settings in multiples of the run's own value, of method settings in values.

      tune: {trials: 12, knobs: {mib: {train.step_lr: [0.1, 10], method.distillation: [3, 300]}}}

    Examples:
      tiss tune mine.yaml
      tiss tune mine.yaml --trials 12 --holdout 0.1 --out runs/mine-tune
      tiss grid runs/mine-tune/tuned.yaml --out runs/mine        # then, on the test set
    """
    if options.file is None:
        raise TissError("FILE missing; usage: tiss tune FILE [options], for example: tiss tune mine.yaml")
    from tiss.engine.grid import check_table, work
    from tiss.engine.progress import TerminalReporter
    from tiss.engine.tune import plan_trials
    from tiss.report.render import print_table
    from tiss.report.tune import trials_table, write_tuned

    table = load_table(options.file)
    check_table(table)
    out = Path(options.out or Path("runs") / f"{Path(options.file).stem}-tune")
    searches = plan_trials(with_options(table, options), options.holdout, options.trials, out)
    # the first trial of every method, then the second, …: where it is stopped, all have had the same number
    trials = [trial for several in zip(*(one.trials for one in searches), strict=True) for trial in several]
    state = work([trial.cell for trial in trials], out, TerminalReporter())
    print_table(trials_table(searches))
    for path in write_tuned(table, searches, out):
        print(path)
    if failed := sum(one == "failed" for one in state.values()):
        print(f"{failed} of {len(trials)} trials failed: see {out}/claims/*.failed.txt", file=sys.stderr)
    return 0


DEMO_METHODS = ("ft", "mib", "tiss", "offline")


@dataclass(frozen=True)
class DemoOptions:
    out: str = setting("runs/demo", "folder for the runs and the report")
    seeds: int = setting(1, "number of seeds; with more than one the table shows mean ± deviation")
    resume: bool = setting(False, "resume a demo that was stopped")


def demo(options: DemoOptions) -> int:
    """Draws a small data set of textured shapes and learns its classes in three steps with four methods: fine-tuning
    (which forgets), MiB, TISS, and offline training on everything at once (the upper bound). No download, no GPU, less
    than five minutes on two cores. Prints a table and writes one HTML page with curves and predictions.

    Examples:
      tiss demo
      tiss demo --seeds 3 --out runs/demo-3-seeds
    """
    from tiss.engine.grid import plan, work
    from tiss.engine.progress import TerminalReporter
    from tiss.engine.recipes import DEMO
    from tiss.report.pages import write_report
    from tiss.report.render import print_results

    start = time.monotonic()
    out = Path(options.out)
    if out.exists() and any(out.iterdir()) and not options.resume:
        raise TissError(f"{out} is not empty: add --resume, or choose another folder", setting="out")
    reporter = TerminalReporter()
    recipe = "recipe: " + ", ".join(f"{key} {value}" for key, value in DEMO.items())
    reporter.say(f"shapes: 8 classes in three steps; {recipe}")
    cells = plan({"axes": {"method": list(DEMO_METHODS)}, "seeds": list(range(options.seeds))})
    check_done(work(cells, out, reporter), out)
    runs = [cell.folder(out) for cell in cells]
    print_results(runs)
    print(recipe)
    page = write_report(runs, out / "report.html", title="tiss demo: shapes, 4 classes, then 2, then 2")
    print(f"{time.monotonic() - start:.0f} s; open {page}")
    return 0
