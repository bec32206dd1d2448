"""The runs of a grid, done by any number of workers, each run once."""

from __future__ import annotations

import gc
import os
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path

from tiss.engine.grid import Cell, is_trained
from tiss.engine.progress import Reporter
from tiss.engine.results_schema import read_results
from tiss.engine.run import run_experiment
from tiss.engine.run_folder import read_config
from tiss.errors import TissError
from tiss.files import write_text
from tiss.files.lock import Lease


def work(cells: list[Cell], grid: Path, reporter: Reporter, wait: float = 5.0) -> dict[str, str]:
    """Does every cell that nobody else does; returns what became of each: done, failed or elsewhere."""
    start, stamp = time.monotonic(), _stamp(grid)
    state = {cell.name: "done" for cell in cells if is_finished(cell.folder(grid))}
    before = len(state)
    reporter.say(_progress(cells, grid, state, before, 0))
    while True:
        open_cells = [cell for cell in cells if state.get(cell.name) not in ("done", "failed")]
        progressed = False
        for cell in open_cells:
            state[cell.name] = _attempt(cell, grid, reporter, stamp)
            progressed = progressed or state[cell.name] in ("done", "failed")
            reporter.say(_progress(cells, grid, state, before, time.monotonic() - start))
        if all(state.get(cell.name) in ("done", "failed") for cell in cells):
            return state
        if not progressed:
            time.sleep(wait)  # others are at work on what is left, or on the base of it


def _progress(cells: list[Cell], grid: Path, state: dict[str, str], before: int, seconds: float) -> str:
    """How far all workers together have come, and when they will be through at the pace since this one began."""
    done = sum(state.get(cell.name) == "done" or is_finished(cell.folder(grid)) for cell in cells)
    failed = sum(value == "failed" for value in state.values())
    left = len(cells) - done - failed
    pace = (done - before) / seconds if seconds else 0
    estimate = f", about {left / pace / 60:.0f} min left" if pace > 0 and left else ""
    return f"grid: {done} of {len(cells)} runs done, {failed} failed{estimate}"


def _attempt(cell: Cell, grid: Path, reporter: Reporter, stamp: int) -> str:
    """One cell: done, failed (here, or elsewhere since `stamp`), or busy elsewhere."""
    if is_finished(cell.folder(grid)):
        return "done"
    claim = Lease(_claims(grid) / f"{cell.name}.lock")
    if not claim.try_acquire():
        return "elsewhere"
    failure = _claims(grid) / f"{cell.unique}.failed.txt"
    try:
        folder = cell.folder(grid)  # asked again: until we held the claim, another table might take the name
        if failure.exists() and failure.stat().st_mtime_ns > stamp:
            return "failed"  # another worker's: it would fail here, too, until the grid is started anew
        damage = damage_of(folder / "results.json")
        if damage:
            reporter.say(f"grid: {damage}: done now")
        base = cell.base_folder(grid)
        if (folder / "config.yaml").exists() and read_config(folder).base is None:
            base = None  # it has begun with a first step of its own
        if base is not None and not _ensure_base(cell, base, grid, reporter):
            return "elsewhere"
        config = replace(cell.config, out=str(folder), base=str(base) if base else cell.config.base)
        reporter.say(f"grid: {folder.name}")
        run_experiment(config, resume=folder.exists(), reporter=reporter, scenario=cell.scenario)
        failure.unlink(missing_ok=True)
        return "done"
    except Exception as error:  # one broken run must not stop the rest
        write_text(failure, traceback.format_exc())
        reporter.say(f"grid: {cell.name} failed: {error}")
        return "failed"
    finally:
        claim.release()
        gc.collect()  # a run's captured updates hold memory of the GPU until they are gone


def _ensure_base(cell: Cell, base: Path, grid: Path, reporter: Reporter) -> bool:
    """Trains the shared first step unless it is there; False while another worker is at it."""
    if is_trained(base):
        return True
    claim = Lease(_claims(grid) / f"base-{base.name}.lock")
    if not claim.try_acquire():
        return False
    try:
        reporter.say(f"grid: first step {base.name}")
        config = replace(cell.config, out=str(base))
        run_experiment(config, resume=base.exists(), reporter=reporter, steps=1, scenario=cell.scenario)
        return True
    finally:
        claim.release()


def _stamp(grid: Path) -> int:
    """Now, by the clock of the file system: it is the one that dates other workers' files."""
    with tempfile.NamedTemporaryFile(dir=_claims(grid), prefix=".now-") as file:
        return os.stat(file.name).st_mtime_ns


def _claims(grid: Path) -> Path:
    folder = grid / "claims"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def is_finished(folder: Path) -> bool:
    """Whether the run is over; damaged results say nothing: the run itself writes them anew."""
    path = folder / "results.json"
    try:
        return path.exists() and bool(read_results(path)["finished"])
    except TissError:
        return False


def damage_of(path: Path) -> str | None:
    """What is wrong with a results.json, and the remedy."""
    try:
        if path.exists():
            read_results(path)
    except TissError as error:
        return str(error)
    return None
