"""A grid: a table of runs, some of which share their first step, done by any number of workers, each run once."""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import os
import shlex
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tiss.config import RunConfig, from_mapping, merge, to_mapping
from tiss.data.base import Dataset
from tiss.engine.progress import Reporter, duration
from tiss.engine.results import read_results
from tiss.engine.run import Run, open_run
from tiss.engine.run_folder import MACHINE, RunFolder, read_config, run_name
from tiss.engine.settings import identity
from tiss.errors import TissError
from tiss.files import Lock, write_text
from tiss.methods.base import build_method, settings_from

KEYS = {"about", "defaults", "axes", "runs", "seeds"}


@dataclass(frozen=True)
class Cell:
    """One run of a grid, with the name of the first step that it can start from (None: its settings give one)."""

    name: str
    config: RunConfig  # as the table has it
    run: Run = field(compare=False, repr=False)  # with every setting resolved
    base: str | None
    identity: str = field(compare=False, repr=False)  # what is done, and with which seed
    alone: bool = (
        False  # no other run here has that first step: it trains its own, unless one is there already
    )

    def folder(self, grid: Path) -> Path:
        """Named like the run; where another table left a run of that name with other settings, with a digest."""
        there = _done_in(grid / self.name)
        return grid / (self.name if there is None or there == self.identity else self.unique)

    @property
    def unique(self) -> str:
        """A name that no run with other settings has."""
        return f"{self.name}-{_digest(self.identity)[:8]}"

    def base_folder(self, grid: Path) -> Path | None:
        """The folder of the shared first step; another grid in this folder may have left one for a run alone."""
        folder = grid / "bases" / self.base if self.base else None
        return folder if folder is not None and (not self.alone or is_trained(folder)) else None


def _done_in(folder: Path) -> str | None:
    """What the run in a folder does, as `identity` writes it; None where there is none, or it goes at this moment.

    One that cannot be read is another run: it was made by a newer version, or is damaged, and stays as it is.
    """
    try:
        return identity(to_mapping(read_config(folder)))
    except TissError as error:
        return str(error) if (folder / "config.yaml").exists() else None


def expand(table: Mapping[str, Any]) -> list[RunConfig]:
    """All configurations of a grid file.

    `defaults` hold for every run; `runs` is a list of differences; `axes` maps keys such as `method` or
    `train.lr` to lists whose every combination is taken; `seeds` is the innermost axis.
    """
    check_table(table)
    axes = dict(table.get("axes") or {})
    axes["seed"] = list(table.get("seeds", [0]))
    configs = []
    for run in table.get("runs") or [{}]:
        for values in itertools.product(*axes.values()):
            mapping = merge(table.get("defaults") or {}, run)
            for key, value in zip(axes, values, strict=True):
                mapping = merge(mapping, _nested(key, value))
            config = from_mapping(RunConfig, mapping)
            configs.append(replace(config, method=settings_from(config.method)))
    return configs


def check_table(table: Mapping[str, Any]) -> None:
    """Refuses a grid file whose parts have the wrong shape, before they are taken for something else."""
    unknown = set(table) - KEYS
    if unknown:
        raise TissError(f"grid: unknown key {sorted(unknown)[0]!r}: it takes {', '.join(sorted(KEYS))}")
    seeds, runs, axes = table.get("seeds", [0]), table.get("runs"), table.get("axes")
    whole = isinstance(seeds, list) and all(type(seed) is int for seed in seeds)
    if not whole or not seeds or len(set(seeds)) < len(seeds):
        raise TissError(f"grid: seeds {seeds}: give a list of different whole numbers, such as [0, 1, 2]")
    if not isinstance(table.get("defaults") or {}, Mapping):
        raise TissError(
            "grid: defaults: give settings by their names, such as {task: 15-1, setup: overlapped}"
        )
    if runs is not None and not (
        isinstance(runs, list) and runs and all(isinstance(run, Mapping) for run in runs)
    ):
        raise TissError("grid: runs: give a list of settings, such as [{method: ft}, {method: mib}]")
    if not isinstance(axes or {}, Mapping):
        raise TissError("grid: axes: give a list of values for each key, such as {task: [15-1, 19-1]}")
    for key, values in (axes or {}).items():
        if not isinstance(values, list) or not values:
            raise TissError(f"grid: axes: {key}: give a list of values, such as [15-1, 19-1]")
        if key == "seed":
            raise TissError("grid: axes: seed has its own place: seeds: [0, 1, 2]")


def plan(table: Mapping[str, Any]) -> list[Cell]:
    """The cells of a grid; runs whose first step is the same in every respect get the same base."""
    cells: list[Cell] = []
    seen: set[str] = set()
    datasets: dict[str, Dataset] = {}  # each opened once: runs share it, and the images decoded for it
    configs = expand(table)
    several = len({(config.model.encoder, config.model.decoder) for config in configs}) > 1
    for config in configs:
        data = _digest(to_mapping(config.data))
        run = open_run(config, datasets.get(data))
        datasets.setdefault(data, run.scenario.dataset)
        complete = run.config
        name, digest = run_name(complete), _digest(to_mapping(complete))
        if digest in seen:
            raise TissError(f"grid: {name} comes twice with the same settings: leave one out")
        seen.add(digest)
        if several:
            name = f"{complete.model.encoder}-{complete.model.decoder}-{name}"
        if any(cell.name == name for cell in cells):
            name += f"-{digest[:8]}"
        cells.append(Cell(name, config, run, base_key(run), identity(to_mapping(complete))))
    counts = {cell.base: sum(other.base == cell.base for other in cells) for cell in cells}
    return [replace(cell, alone=counts[cell.base] == 1) for cell in cells]


def base_key(run: Run) -> str | None:
    """What step 0 depends on, as a name; None where it is given.

    Offline training has no other step: it is the same for any task, and only its scores are grouped otherwise.
    """
    config = run.config
    if config.base is not None:
        return None
    method = build_method(config.method, len(run.scenario))
    mapping = to_mapping(config)
    later = ("step_epochs", "step_lr")
    train = {k: v for k, v in mapping["train"].items() if k not in later + MACHINE}
    step = run.scenario[0]
    what = {
        "classes": step.new_classes,
        "ids": hashlib.sha256("\n".join(step.train.ids).encode()).hexdigest(),
        "table": step.train.table.tolist(),
        "data": mapping["data"],
        "model": mapping["model"],
        "head": method.head,
        "train": train,
        "method": method.base_settings(),
        "seed": config.seed,
    }
    return f"{config.data.name}-{config.model.encoder}-seed{config.seed}-{_digest(what)[:10]}"


def is_trained(base: Path) -> bool:
    """Whether a first step is complete."""
    return RunFolder(base).step(0).is_complete


def commands(cells: list[Cell], grid: Path) -> Iterator[str]:
    """Every run as an ordinary command, first steps first, for any scheduler."""
    seen: set[str] = set()
    for cell in cells:
        base = cell.base_folder(grid)
        if base is not None and cell.base not in seen:
            seen.add(str(cell.base))
            yield command_of(replace(cell.config, out=str(base)), extra=["--steps", "1"])
    for cell in cells:
        base = cell.base_folder(grid)
        yield command_of(replace(cell.config, out=str(cell.folder(grid)), base=str(base) if base else None))


def command_of(config: RunConfig, extra: list[str] | None = None) -> str:
    """`config` as a `tiss run` command with only the flags that differ from the defaults."""
    mapping = to_mapping(config)
    default = to_mapping(replace(RunConfig(), method=type(config.method)()))
    words = ["tiss", "run", "--method", config.method.name]
    words += [word for key in mapping for word in _flag_words(key, mapping[key], default[key])]
    return shlex.join([*words, *(extra or [])])


def _flag_words(key: str, value: Any, default: Any) -> list[str]:
    if isinstance(value, dict):
        words = (
            ["--" + key, str(value["name"])]
            if key != "method" and value.get("name") != default.get("name")
            else []
        )
        for inner, inner_value in value.items():
            if inner != "name":
                words += _flag_words(f"{key}.{inner}", inner_value, default.get(inner))
        return words
    if value == default:
        return []
    if isinstance(value, list):
        text = (
            "/".join(map(",".join, value))
            if value and isinstance(value[0], list)
            else ",".join(map(str, value))
        )
        return [f"--{key}", text]
    return [f"--{key}", str(value).lower() if isinstance(value, bool) else str(value)]


def _nested(key: str, value: Any) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {first: _nested(rest, value)} if rest else {first: value}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


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
            time.sleep(wait)  # other workers have what is left, or its base


def _progress(cells: list[Cell], grid: Path, state: dict[str, str], before: int, seconds: float) -> str:
    """How far all workers have come, and when they will finish at the pace since this one began."""
    done = sum(state.get(cell.name) == "done" or is_finished(cell.folder(grid)) for cell in cells)
    failed = sum(value == "failed" for value in state.values())
    left = len(cells) - done - failed
    pace = (done - before) / seconds if seconds else 0
    estimate = f", about {duration(left / pace)} left" if pace > 0 and left else ""
    return f"grid: {done} of {len(cells)} runs done, {failed} failed{estimate}"


def _attempt(cell: Cell, grid: Path, reporter: Reporter, stamp: int) -> str:
    """One cell: done, failed (here, or elsewhere since `stamp`), or busy elsewhere."""
    if is_finished(cell.folder(grid)):
        return "done"
    claim = Lock(_claims(grid) / f"{cell.name}.lock")
    if not claim.try_acquire():
        return "elsewhere"
    failure = _claims(grid) / f"{cell.unique}.failed.txt"
    try:
        folder = cell.folder(grid)  # asked again: until we held the claim, another table might take the name
        if failure.exists() and failure.stat().st_mtime_ns > stamp:
            return "failed"  # another worker's: it would fail here, too, until the grid is started again
        damage = damage_of(folder / "results.json")
        if damage:
            reporter.say(f"grid: {damage}: repeated now")
        base = cell.base_folder(grid)
        if (folder / "config.yaml").exists() and read_config(folder).base is None:
            base = None  # it has begun with a first step of its own
        if base is not None and not _ensure_base(cell, base, grid, reporter):
            return "elsewhere"
        reporter.say(f"grid: {folder.name}")
        run_in(cell.run, folder, str(base) if base else cell.config.base).execute(
            resume=folder.exists(), reporter=reporter
        )
        failure.unlink(missing_ok=True)
        return "done"
    except Exception as error:  # one broken run must not stop the rest
        write_text(failure, traceback.format_exc())
        reporter.say(f"grid: {cell.name} failed: {error}")
        return "failed"
    finally:
        claim.release()
        gc.collect()  # a run's CUDA graphs hold GPU memory until they are collected


def _ensure_base(cell: Cell, base: Path, grid: Path, reporter: Reporter) -> bool:
    """Trains the shared first step unless it is there; False while another worker trains it."""
    if is_trained(base):
        return True
    claim = Lock(_claims(grid) / f"base-{base.name}.lock")
    if not claim.try_acquire():
        return False
    try:
        reporter.say(f"grid: first step {base.name}")
        run_in(cell.run, base, None).execute(resume=base.exists(), reporter=reporter, steps=1)
        return True
    finally:
        claim.release()


def run_in(run: Run, folder: Path, base: str | None) -> Run:
    """The run, written into another folder and started from `base`."""
    return replace(run, folder=folder, config=replace(run.config, out=str(folder), base=base))


def _stamp(grid: Path) -> int:
    """Now, by the clock of the file system: it is the one that dates other workers' files."""
    with tempfile.NamedTemporaryFile(dir=_claims(grid), prefix=".now-") as file:
        return os.stat(file.name).st_mtime_ns


def _claims(grid: Path) -> Path:
    folder = grid / "claims"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def is_finished(folder: Path) -> bool:
    """Whether the run is finished; damaged results do not count: the run itself rebuilds them."""
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
