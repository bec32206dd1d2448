"""Equal effort: each method of a grid gets the same number of trials, scored on the same held-out training images.

A trial is a run of the grid with other values of the method's knobs, so finished ones are found again and equal first
steps are shared. The test set is never read. The settings found are written as a grid.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiss.config import RunConfig, convert, merge, to_mapping
from tiss.engine.grid import Cell, combinations, is_finished, nested, orders_of, plan
from tiss.engine.results import read_results
from tiss.engine.run_folder import flatten
from tiss.errors import TissError, suggest
from tiss.evaluation.scores import Scores
from tiss.methods.base import METHODS, settings_from
from tiss.randomness import stream

TRIALS = 8
BASES = (2, 3, 5, 7, 11, 13)  # of the Halton sequence, one per knob
Knobs = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Trial:
    """A run of the grid with these values of its knobs; with none, as the grid has it."""

    knobs: Mapping[str, float]
    cell: Cell
    grid: Path

    @property
    def folder(self) -> Path:
        return self.cell.folder(self.grid)

    def scores(self) -> Scores | None:
        """After the last step, on the held-out images; None where the run failed or is not finished."""
        if not is_finished(self.folder):
            return None
        return Scores.from_json(read_results(self.folder / "results.json")["steps"][-1])

    @property
    def miou(self) -> float | None:
        """Of all classes, with the background where it is a class: what decides."""
        scores = self.scores()
        return None if scores is None else scores.all.headline


@dataclass(frozen=True)
class Search:
    """All trials of one run of the grid."""

    place: int  # among the grid's runs
    knobs: Knobs  # the range of each
    trials: Sequence[Trial]

    @property
    def first(self) -> Cell:
        return self.trials[0].cell

    @property
    def method(self) -> str:
        return str(self.first.config.method.name)

    def best(self) -> Trial:
        """The finished trial with the highest mIoU; of equal ones the first."""
        done = [(miou, trial) for trial in self.trials if (miou := trial.miou) is not None]
        if not done:
            raise TissError(f"{self.first.name}: no trial finished: see claims/*.failed.txt")
        return max(done, key=lambda one: one[0])[1]


def plan_trials(table: Mapping[str, Any], holdout: float, trials: int | None, out: Path) -> list[Search]:
    """The trials of every run of the grid, with its first seed and first order of the classes.

    The first trial has the grid's own settings. Offline training has no later steps and is left as it is.
    """
    if not 0 < holdout < 1:
        raise TissError(
            f"{holdout:g}: give a share above 0 and below 1: held-out images choose, never the test set",
            setting="holdout",
        )
    runs: dict[int, dict[str, Any]] = {}
    for place, run in enumerate(combinations(table)):
        if run.get("base"):
            raise TissError(
                "base: that first step may have seen the held-out images: leave it out of the grid"
            )
        if not METHODS.get(settings_from(run.get("method", RunConfig().method)).name).joint:
            runs[place] = {**run, "holdout": holdout, "order": orders_of(run)[0]}
    if not runs:
        raise TissError("grid: nothing to tune: offline training has no later steps")
    asked: Mapping[str, Any] = table.get("tune") or {}
    count, seeds = asked.get("trials", TRIALS) if trials is None else trials, (table.get("seeds") or [0])[:1]
    if type(count) is not int or count < 2:
        raise TissError(f"{count}: give at least 2; the first has the grid's own settings", setting="trials")
    defaults = plan({"runs": [*runs.values()], "seeds": seeds})
    ranges = [knobs_of(cell.config.method.name, asked.get("knobs") or {}) for cell in defaults]
    drawn = [
        [{}, *draw(knobs, cell.run.config, count - 1)] for cell, knobs in zip(defaults, ranges, strict=True)
    ]
    values = [one for trial in zip(*drawn, strict=True) for one in trial]
    methods = [cell.config.method.name for cell in defaults] * count
    settings = map(with_knobs, [*runs.values()] * count, methods, values)
    cells = plan({"runs": [*settings], "seeds": seeds})
    planned = [Trial(one, cell, out) for one, cell in zip(values, cells, strict=True)]
    return [Search(place, ranges[n], planned[n :: len(runs)]) for n, place in enumerate(runs)]


def knobs_of(method: str, asked: Mapping[str, Any]) -> Knobs:
    """The range of each knob of a method: the grid's, or else the method's own."""
    for name in asked:
        METHODS.get(name)  # unknown: an error with a suggestion
    where, knobs = f"tune.knobs.{method}", asked.get(method, METHODS.get(method).knobs)
    if not isinstance(knobs, Mapping) or not 0 < len(knobs) <= len(BASES):
        raise TissError(f"{where}: give one to {len(BASES)} settings, each with a range")
    ranges = {key: convert(span, tuple[float, float], f"{where}.{key}") for key, span in knobs.items()}
    for key, (low, high) in ranges.items():
        if not 0 < low < high < math.inf:
            raise TissError(f"{where}.{key}: give two numbers above 0, the smaller one first")
    return ranges


def draw(knobs: Knobs, config: RunConfig, count: int) -> list[dict[str, float]]:
    """Different values that cover the ranges evenly on a logarithmic scale; more of them begin with the same ones.

    A range of a `train` setting is in multiples of the run's own value, one of a `method` setting in values. A knob's
    sequence depends on the seed and its name, so all methods try the same multiples of the learning rate.
    """
    found: list[dict[str, float]] = []
    usual = {key: usual_value(config, key) for key in knobs}
    for index in range(1, 50 * (count + 1)):
        point = {}
        for base, (key, (low, high)) in zip(BASES, knobs.items(), strict=False):
            share = (radical_inverse(index, base) + stream(config.seed, "tune", key).random()) % 1
            value = low * (high / low) ** share * (usual[key] if key.startswith("train.") else 1)
            point[key] = max(1, round(value)) if isinstance(usual[key], int) else float(f"{value:.2g}")
        if point != usual and point not in found:
            found.append(point)
        if len(found) == count:
            return found
    raise TissError(f"tune: {config.method.name}'s knobs give {len(found) + 1} different trials: widen them")


def usual_value(config: RunConfig, key: str) -> Any:
    """What a knob is without tuning; None where the method decides."""
    known = flatten({"train": to_mapping(config.train), "method": to_mapping(config.method)})
    if key not in known:
        raise TissError(suggest(key, known, f"knob of {config.method.name}"))
    value = known[key]
    if type(value) not in (int, float) and (value is not None or key.startswith("train.")):
        raise TissError(f"tune: {key} is {value}: a knob is a number")
    return value


def radical_inverse(index: int, base: int) -> float:
    """The digits of `index`, mirrored at the point: Halton's sequence.

    >>> [radical_inverse(index, 2) for index in (1, 2, 3, 4)]
    [0.5, 0.25, 0.75, 0.125]
    """
    result, share = 0.0, 1.0
    while index:
        share /= base
        index, digit = divmod(index, base)
        result += share * digit
    return result


def with_knobs(run: Mapping[str, Any], method: str, values: Mapping[str, float]) -> dict[str, Any]:
    """A run of a grid with these settings; the method is named beside its own ones."""
    if any(key.startswith("method.") for key in values):
        run = merge(run, {"method": {"name": method}})
    for key, value in values.items():
        run = merge(run, nested(key, value))
    return dict(run)


def held_out_ids(searches: Sequence[Search]) -> dict[str, list[str]]:
    """The images that chose, by data set."""
    runs = [search.first.run for search in searches]
    return {run.config.data.name: list(run.scenario[-1].test.ids) for run in runs}


def tuned_grid(table: Mapping[str, Any], searches: Sequence[Search]) -> dict[str, Any]:
    """The same grid with the settings found."""
    found = {search.place: (search.method, search.best().knobs) for search in searches}
    runs = combinations({**table, "defaults": {}})
    kept = {key: table[key] for key in ("about", "defaults", "seeds") if key in table}
    return {**kept, "runs": [with_knobs(run, *found.get(place, ("", {}))) for place, run in enumerate(runs)]}
