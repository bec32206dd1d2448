"""A grid: a table of runs, some of which share their first step, done by any number of workers, each run once."""

import gc
import hashlib
import itertools
import json
import re
import shlex
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tiss.config import RunConfig, from_mapping, merge, to_mapping
from tiss.data.base import Dataset
from tiss.engine.device import computes_bf16
from tiss.engine.features import FeatureCache
from tiss.engine.progress import Reporter, duration
from tiss.engine.results import read_results
from tiss.engine.run import Run, open_run
from tiss.engine.run_folder import MACHINE, RunFolder, flatten, identity, read_config, run_name
from tiss.errors import TissError
from tiss.files import Lock, make_folder, write_text
from tiss.methods.base import METHODS, build_method, settings_from

# the keys of a grid file, and what belongs there
SHAPES = {
    "about": "a text",
    "defaults": "settings by their names, such as {task: 15-1, setup: overlapped}",
    "runs": "a list of settings, such as [{method: ft}, {method: mib}]",
    "axes": "a list of values for each key, such as {task: [15-1, 19-1]}; seeds have their own key",
    "seeds": "a list of different whole numbers, such as [0, 1, 2]",
    "tune": "what tiss tune takes, such as {trials: 8, knobs: {mib: {train.step_lr: [0.1, 10]}}}",
}


@dataclass(frozen=True)
class Cell:
    """One run of a grid, with the name of the first step that it can start from (None: its settings give one)."""

    name: str
    config: RunConfig  # as the table has it
    run: Run = field(compare=False, repr=False)  # with every setting resolved
    base: str | None
    identity: str = field(compare=False, repr=False)  # what is done, and with which seed

    def folder(self, grid: Path) -> Path:
        """Named like the run; where another table left a run of that name with other settings, with a digest."""
        named = grid / self.name
        try:
            other = identity(to_mapping(read_config(named))) != self.identity
        except TissError:  # there is none, or it is made by a newer version, or damaged: it stays as it is
            other = (named / "config.yaml").exists()
        return grid / self.unique if other else named

    @property
    def unique(self) -> str:
        """A name that no run with other settings has."""
        return f"{self.name}-{_digest(self.identity)[:8]}"

    def base_folder(self, grid: Path) -> Path | None:
        return grid / "bases" / self.base if self.base else None

    @property
    def first(self) -> "Cell":
        """The run that trains the shared first step: plain training for a method that then solves its head."""
        if not METHODS.get(self.config.method.name).solved:
            return self
        plain = settings_from("ft")
        run = replace(self.run, config=replace(self.run.config, method=plain))
        return replace(self, config=replace(self.config, method=plain), run=run)

    def command(self, out: Path, base: Path | None = None, extra: Iterable[str] = ()) -> str:
        """The run as a `tiss run` command; it names the recipe, whose default depends on the base."""
        train = replace(self.config.train, recipe=self.run.config.train.recipe)
        first = str(base) if base else self.config.base
        return command_of(replace(self.config, train=train, out=str(out), base=first), extra)


def expand(table: Mapping[str, Any]) -> list[RunConfig]:
    """All configurations of a grid file.

    `defaults` hold for every run; `runs` is a list of differences; `axes` maps keys such as `method` or
    `train.lr` to lists whose every combination is taken; `seeds` is the innermost axis. `order: random:0..4` stands
    for five runs with other orders of the classes, which reports pool.
    """
    configs = []
    for run, seed in itertools.product(combinations(table), table.get("seeds") or [0]):
        for order in orders_of(run):
            config = from_mapping(RunConfig, {**run, "seed": seed, "order": order})
            configs.append(replace(config, method=settings_from(config.method)))
    return configs


def combinations(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings of every run, defaults and axes among them, before seeds and random orders multiply them."""
    check_table(table)
    axes, found = table.get("axes") or {}, []
    for run in table.get("runs") or [{}]:
        for values in itertools.product(*axes.values()):
            mapping = merge(table.get("defaults") or {}, run)
            for key, value in zip(axes, values, strict=True):
                mapping = merge(mapping, nested(key, value))
            found.append(mapping)
    return found


def nested(key: str, value: Any) -> dict[str, Any]:
    """One setting by its dotted name, as a mapping of mappings.

    >>> nested("train.lr", 0.1)
    {'train': {'lr': 0.1}}
    """
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def orders_of(run: Mapping[str, Any]) -> list[Any]:
    """random:0..4 stands for five orders of the classes."""
    order = run.get("order")
    span = re.fullmatch(r"random:(\d+)\.\.(\d+)", str(order))
    return [f"random:{seed}" for seed in range(int(span[1]), int(span[2]) + 1)] if span else [order]


def check_table(table: Mapping[str, Any]) -> None:
    """Refuses a grid file whose parts have the wrong shape, before they are taken for something else."""
    unknown = set(table) - set(SHAPES)
    if unknown:
        raise TissError(f"grid: unknown key {sorted(unknown)[0]!r}: it takes {', '.join(sorted(SHAPES))}")
    about, defaults, runs, axes, seeds, tune = (table.get(key) for key in SHAPES)
    fits = {
        "about": isinstance(about, str),
        "defaults": isinstance(defaults, dict),
        "runs": _list_of(runs, dict),
        "axes": isinstance(axes, dict) and "seed" not in axes and all(map(_list_of, axes.values())),
        "seeds": _list_of(seeds, int) and len(set(seeds or ())) == len(seeds or ()),
        "tune": isinstance(tune, dict)
        and set(tune) <= {"trials", "knobs"}
        and isinstance(tune.get("knobs", {}), dict),
    }
    for key, remedy in SHAPES.items():
        if table.get(key) is not None and not fits[key]:
            raise TissError(f"grid: {key} {table[key]}: give {remedy}")


def _list_of(values: Any, kind: type | None = None) -> bool:
    return isinstance(values, list) and bool(values) and all(kind in (None, type(item)) for item in values)


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
    return cells


def base_key(run: Run) -> str | None:
    """What step 0 depends on, as a name; None where it is given, or solved on an encoder that is not trained.

    Offline training has no other step: it is the same for any task, and only its scores are grouped otherwise.
    """
    config = run.config
    if config.base is not None:
        return None
    method = build_method(config.method, len(run.scenario))
    if method.solved and config.train.encoder_lr == 0 and config.model.decoder in ("linear", "levels"):
        return None
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


def commands(cells: list[Cell], grid: Path) -> Iterator[str]:
    """Every run as an ordinary command, first steps first, for any scheduler."""
    for cell in bases_of(cells).values():
        yield cell.command(grid / "bases" / str(cell.base), extra=["--steps", "1"])
    for cell in cells:
        yield cell.command(cell.folder(grid), cell.base_folder(grid))


def bases_of(cells: list[Cell]) -> dict[str, Cell]:
    """Who trains each shared first step: the same run in every worker, so that any of them can resume it."""
    found: dict[str, Cell] = {}
    for cell in cells:
        if cell.base is not None:
            found.setdefault(cell.base, cell.first)
    return found


def command_of(config: RunConfig, extra: Iterable[str] = ()) -> str:
    """`config` as a `tiss run` command with only the flags that differ from the defaults."""
    usual = flatten(to_mapping(replace(RunConfig(), method=type(config.method)())))
    words = ["tiss", "run", "--method", config.method.name]
    for key, value in flatten(to_mapping(config)).items():
        if value != usual.get(key) and key != "method.name":
            words += [f"--{key.removesuffix('.name')}", _flag_text(value)]
    return shlex.join([*words, *extra])


def _flag_text(value: Any) -> str:
    if isinstance(value, list):  # groups of classes, or numbers
        nested = any(isinstance(item, list) for item in value)
        return "/".join(map(_flag_text, value)) if nested else ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def work(cells: list[Cell], grid: Path, reporter: Reporter, wait: float = 5.0) -> dict[str, str]:
    """Does every cell that nobody else does; returns what became of each: done, failed or elsewhere."""
    start = time.monotonic()
    state = {cell.name: "done" for cell in cells if is_finished(cell.folder(grid))}
    bases = bases_of(cells)
    before = len(state)
    reporter.say(_progress(cells, grid, state, before, 0))
    with shared_features(cells, grid) as features:
        while left := [cell for cell in cells if state.get(cell.name) not in ("done", "failed")]:
            for cell in left:
                state[cell.name] = _attempt(cell, bases, grid, reporter, features)
                reporter.say(_progress(cells, grid, state, before, time.monotonic() - start))
            if all(state[cell.name] == "elsewhere" for cell in left):
                time.sleep(wait)  # other workers have what is left, or its base
    return state


@contextmanager
def shared_features(cells: list[Cell], grid: Path) -> Iterator[FeatureCache | None]:
    """Features that the runs of one worker share; those of other workers keep their own, run by run."""
    kept = [cell.run.config.train for cell in cells if cell.run.config.train.keep_features]
    with claimed(grid, "features") if kept else nullcontext(False) as mine:
        if not mine:
            yield None
            return
        with FeatureCache.kept_in(grid / "features", computes_bf16(kept[0])) as features:
            yield features


def _progress(cells: list[Cell], grid: Path, state: dict[str, str], before: int, seconds: float) -> str:
    """How far all workers have come, and when they will finish at the pace since this one began."""
    done = sum(state.get(cell.name) == "done" or is_finished(cell.folder(grid)) for cell in cells)
    failed = sum(value == "failed" for value in state.values())
    left = len(cells) - done - failed
    pace = (done - before) / seconds if seconds else 0
    estimate = f", about {duration(left / pace)} left" if pace > 0 and left else ""
    return f"grid: {done} of {len(cells)} runs done, {failed} failed{estimate}"


def _attempt(
    cell: Cell, bases: Mapping[str, Cell], grid: Path, reporter: Reporter, features: FeatureCache | None
) -> str:
    """One cell: done, failed, or busy elsewhere."""
    if is_finished(cell.folder(grid)):
        return "done"
    failure = make_folder(grid / "claims") / f"{cell.unique}.failed.txt"
    try:
        with claimed(grid, cell.name) as mine:
            if not mine:
                return "elsewhere"
            folder = cell.folder(grid)  # asked again: until now, another table might take the name
            if (folder / "results.json").exists():
                reporter.say(f"grid: {folder}: results.json is damaged or of an unfinished run: resumed")
            base = cell.base_folder(grid)
            if (folder / "config.yaml").exists() and read_config(folder).base is None:
                base = None  # version 0.1 began it with a first step of its own
            if base is not None and not RunFolder(base).step(0).is_complete:
                with claimed(grid, f"base-{base.name}") as mine:
                    if not mine:
                        return "elsewhere"
                    reporter.say(f"grid: first step {base.name}")
                    execute(bases[base.name].run, base, None, reporter, features, steps=1)
            reporter.say(f"grid: {folder.name}")
            execute(cell.run, folder, str(base) if base else cell.config.base, reporter, features)
            failure.unlink(missing_ok=True)
            return "done"
    except Exception as error:  # one broken run must not stop the rest
        write_text(failure, traceback.format_exc())
        reporter.say(f"grid: {cell.name} failed: {error}")
        return "failed"
    finally:
        gc.collect()  # a run's CUDA graphs hold GPU memory until they are collected


@contextmanager
def claimed(grid: Path, name: str) -> Iterator[bool]:
    """Whether this worker has what `name` stands for to itself, until the block ends."""
    lock = Lock(grid / "claims" / f"{name}.lock")
    try:
        yield lock.try_acquire()
    finally:
        lock.release()


def execute(
    run: Run,
    folder: Path,
    base: str | None,
    reporter: Reporter,
    features: FeatureCache | None = None,
    steps: int | None = None,
) -> None:
    """Does the run, or its first steps, in another folder and from `base`; resumes what is there."""
    run = replace(run, folder=folder, config=replace(run.config, out=str(folder), base=base))
    run.execute(resume=folder.exists(), steps=steps, reporter=reporter, features=features)


def is_finished(folder: Path) -> bool:
    """Whether the run is finished; damaged results do not count: the run itself rebuilds them."""
    path = folder / "results.json"
    try:
        return path.exists() and bool(read_results(path)["finished"])
    except TissError:
        return False
