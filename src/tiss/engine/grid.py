"""A grid: a table of runs, which of them share a first step, and each as a command."""

from __future__ import annotations

import hashlib
import itertools
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tiss.config import RunConfig, from_mapping, merge, to_mapping
from tiss.engine.recipes import resolve
from tiss.engine.run import open_scenario
from tiss.engine.run_folder import MACHINE, read_config, run_name
from tiss.engine.settings import identity
from tiss.errors import TissError
from tiss.methods.base import METHODS, build_method, settings_from
from tiss.scenarios.scenario import Scenario

KEYS = {"about", "defaults", "axes", "runs", "seeds"}


@dataclass(frozen=True)
class Cell:
    """One run of a grid, with the name of the first step that it can start from (None: its settings give one)."""

    name: str
    config: RunConfig
    base: str | None
    scenario: Scenario = field(compare=False, repr=False)
    identity: str = field(compare=False, repr=False)  # what is done, and with which seed
    alone: bool = False  # nobody else here has that first step: it trains its own, unless one lies there

    def folder(self, grid: Path) -> Path:
        """By the run's name; where another table left a run of that name with other settings, a digest goes with it."""
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
    opened = Opened()
    configs = expand(table)
    several = len({(config.model.encoder, config.model.decoder) for config in configs}) > 1
    for config in configs:
        scenario = opened.scenario(config)
        complete = resolve(config, scenario.dataset)
        name, digest = run_name(complete), _digest(to_mapping(complete))
        if digest in seen:
            raise TissError(f"grid: {name} comes twice with the same settings: leave one out")
        seen.add(digest)
        if several:
            name = f"{complete.model.encoder}-{complete.model.decoder}-{name}"
        if any(cell.name == name for cell in cells):
            name += f"-{digest[:8]}"
        what = identity(to_mapping(complete))
        cells.append(Cell(name, config, base_key(complete, scenario), scenario, what))
    counts = {cell.base: sum(other.base == cell.base for other in cells) for cell in cells}
    return [replace(cell, alone=counts[cell.base] == 1) for cell in cells]


class Opened:
    """Scenarios and data sets of a grid, each opened once: runs share them, and the pictures decoded for them."""

    def __init__(self) -> None:
        self._scenarios: dict[str, Scenario] = {}
        self._data: dict[str, Scenario] = {}  # the first scenario of each data set

    def scenario(self, config: RunConfig) -> Scenario:
        mapping = to_mapping(config)
        keys = ("data", "task", "setup", "protocol", "order", "lists", "holdout")
        key = _digest({k: mapping[k] for k in keys} | {"joint": METHODS.get(config.method.name).joint})
        if key not in self._scenarios:
            first = self._data.get(_digest(mapping["data"]))
            _, found = open_scenario(config, first.dataset if first else None)
            if first:
                found = replace(found, shared=first.shared)
            self._data.setdefault(_digest(mapping["data"]), found)
            self._scenarios[key] = found
        return self._scenarios[key]


def base_key(config: RunConfig, scenario: Scenario) -> str | None:
    """What step 0 depends on, as a name; None where it is given.

    Offline training has no other step: for any task it is the same, and only its scores are sorted otherwise.
    """
    if config.base is not None:
        return None
    method = build_method(config.method, len(scenario))
    mapping = to_mapping(config)
    later = ("step_epochs", "step_lr")
    train = {k: v for k, v in mapping["train"].items() if k not in later + MACHINE}
    step = scenario[0]
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
    """Whether a first step is complete: its confusion matrix is the last that is written."""
    return (base / "step-0" / "confusion.safetensors").exists()


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
