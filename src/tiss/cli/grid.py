"""`tiss grid`: a table of runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from tiss.cli.flags import flags_of, help_text, own_names, parse_flags, read_yaml
from tiss.config import from_mapping, merge, setting
from tiss.errors import TissError, suggest

USAGE = "tiss grid FILE.yaml|TABLE [options]"
ABOUT = """
Does every run of a table, each once: first steps that are the same are trained once and shared, finished runs are
skipped, a failed run does not stop the rest. Start the same command on as many machines as share the folder. Several
tables with the same --out share their first steps, too, and runs of the same name and settings.

FILE.yaml holds `defaults` (as in a run's configuration), `runs` (a list of differences), `axes` (key → list, all
combinations) and `seeds`. TABLE is a table of the paper: --tables lists them.
"""
EXAMPLES = """
tiss grid mine.yaml --out runs/mine
tiss grid voc --root VOCdevkit --seeds 0,1,2 --out runs/voc
tiss grid mine.yaml --out runs/mine --done results/mine    # on another machine: only what is not recorded yet
tiss grid 15-1o --root VOCdevkit --list
"""
SWITCHES = {
    "list": "print each run as a tiss run command, for any scheduler, and stop",
    "tables": "list the paper's tables and stop",
    "help": "this text",
}


@dataclass(frozen=True)
class GridOptions:
    out: str | None = setting(None, "grid folder (None: runs/<name of the file>)")
    root: str | None = setting(None, "folder of the data set, for every run")
    seeds: tuple[int, ...] | None = setting(None, "seeds instead of the file's, with commas")
    pretrained: str | None = setting(None, "encoder weights, for every run")
    done: str | None = setting(
        None, "folder of records (tiss report --collect): runs that are among them are not done again"
    )


def main(arguments: list[str]) -> int:
    """Runs the command."""
    flags = list(flags_of(GridOptions))
    values, given, rest = parse_flags(arguments, flags, SWITCHES, positional="FILE")
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    if "tables" in given:
        for name in tables():
            print(f"{name:<12} {load_table(name).get('about', '')}")
        return 0
    if len(rest) != 1:
        raise TissError("tiss grid takes one file or table, for example: tiss grid voc --list")
    return do_runs(rest[0], from_mapping(GridOptions, values), "list" in given)


@own_names(GridOptions)
def do_runs(name: str, options: GridOptions, only_list: bool) -> int:
    from tiss.engine.grid import check_table, commands, plan
    from tiss.engine.grid_work import work
    from tiss.engine.progress import TerminalReporter

    table = load_table(name)
    check_table(table)
    table = with_options(table, options)
    grid = Path(options.out or Path("runs") / Path(name).stem)
    cells = plan(table)
    if options.done:
        cells = without_recorded(cells, Path(options.done))
    if only_list:
        print("\n".join(commands(cells, grid)))
        return 0
    state = work(cells, grid, TerminalReporter())
    failed = [name for name, value in state.items() if value == "failed"]
    print(f"{len(state) - len(failed)} runs done in {grid}; tiss report {grid} makes the tables")
    if failed:
        raise TissError(f"{len(failed)} run(s) failed: {', '.join(failed)}; see {grid}/claims/*.failed.txt")
    return 0


def without_recorded(cells: list[Any], folder: Path) -> list[Any]:
    """The cells of which there is no record yet: so a grid goes on where another machine stopped."""
    from tiss.report.records import recorded

    known = recorded(folder)
    left = [cell for cell in cells if cell.identity not in known]
    known_ones = len(cells) - len(left)
    print(
        f"{known_ones} of {len(cells)} runs are in {folder} already", file=sys.stderr
    )  # stdout may go to a scheduler
    return left


def with_options(table: dict, options: GridOptions) -> dict:
    """The table with the command line's data folder, weights and seeds in it."""
    over: dict = {}
    if options.root:
        over = merge(over, {"data": {"root": options.root}})
    if options.pretrained:
        over = merge(over, {"model": {"pretrained": options.pretrained}})
    table = {**table, "defaults": merge(table.get("defaults") or {}, over)}
    return {**table, "seeds": list(options.seeds)} if options.seeds else table


def tables() -> list[str]:
    """Names of the paper's tables for which the package has a grid."""
    return sorted(
        path.name.removesuffix(".yaml") for path in _folder().iterdir() if path.name.endswith(".yaml")
    )


def load_table(name: str) -> dict:
    """A grid from a file, or one of the package's own by its name."""
    if Path(name).suffix in (".yaml", ".yml"):
        return read_yaml(name, "tiss grid")
    if name not in tables():
        raise TissError(suggest(name, tables(), "table (or give a .yaml file)"))
    return read_yaml(str(_folder() / f"{name}.yaml"))


def _folder():
    return files("tiss") / "grids"
