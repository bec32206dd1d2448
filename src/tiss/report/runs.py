"""Finished runs, read back and put in order.

Runs that differ in their seed alone form a series, series of one task an experiment.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tiss.engine.results import read_results
from tiss.engine.settings import all_settings, what_was_done
from tiss.errors import TissError
from tiss.evaluation.scores import Scores, percent
from tiss.files import read_yaml
from tiss.methods.base import METHODS
from tiss.report.colours import STYLES
from tiss.report.labels import Variant, labels_of, natural, network_labels
from tiss.report.records import is_record

RunLike = str | Path | Mapping[str, Any]

MEDIAN = "exact median"
MEDIAN_NOTE = (
    "PLOP (exact median): `official: false`, the exact median of each class's entropy where the published code has "
    "thresholds; not PLOP as published."
)


@dataclass(frozen=True)
class Value:
    """A figure over seeds: mean, sample deviation (None with one seed), number of seeds."""

    mean: float
    deviation: float | None = None
    count: int = 1

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Value | None:
        """The value of those figures that are there; None if there is none.

        >>> Value.of([1.0, None, 3.0])
        Value(mean=2.0, deviation=1.4142135623730951, count=2)
        """
        present = [value for value in values if value is not None]
        if not present:
            return None
        deviation = statistics.stdev(present) if len(present) > 1 else None
        return cls(statistics.fmean(present), deviation, len(present))

    def __str__(self) -> str:
        return percent(self.mean) + ("" if self.deviation is None else f" ± {percent(self.deviation)}")


@dataclass(frozen=True)
class Result:
    """One run: its results.json, its folder where there is one, and its settings by dotted name."""

    values: Mapping[str, Any]
    folder: Path | None
    settings: Mapping[str, Any]

    @cached_property
    def steps(self) -> list[Scores]:
        return [Scores.from_json(entry) for entry in self.values["steps"]]

    @property
    def finished(self) -> bool:
        return bool(self.values["finished"])

    @property
    def exact_median(self) -> bool:
        """Whether a run of PLOP has not the published thresholds but the exact median, as in version 0.1."""
        return self.values["method"] in ("plop", "ploplong") and self.settings.get("method.official") is False

    @property
    def at_once(self) -> bool:
        """Whether every class was trained in one step, though the task has several."""
        return self.finished and len(self.values["steps"]) == 1 and len(self.values["groups"]) > 1


@dataclass(frozen=True)
class Series:
    """The runs that differ in their seed alone."""

    label: str
    results: tuple[Result, ...]
    name: str = ""  # the label in a table that has columns for encoder and decoder

    @property
    def first(self) -> Result:
        return self.results[0]

    @property
    def method(self) -> str:
        return str(self.first.values["method"])

    @property
    def at_once(self) -> bool:
        return self.first.at_once

    @property
    def steps(self) -> int:
        return len(self.first.values["steps"])

    def value(self, step: int, figure: Callable[[Scores], float | None]) -> Value | None:
        """A figure of one step over the seeds; `step` may count from the end."""
        return Value.of(figure(result.steps[step]) for result in self.results)

    def forgetting(self, name: str, step: int = -1) -> Value | None:
        """Points of a class's best earlier IoU that are lost after `step`."""
        return Value.of(result.values["steps"][step]["forgetting"].get(name) for result in self.results)

    def mean_forgetting(self, step: int = -1) -> Value | None:
        """The mean over the classes of step 0, without the background."""
        names = [self.first.values["classes"][channel] for channel in self.first.values["groups"][0]]

        def of(result: Result) -> float | None:
            lost = result.values["steps"][step]["forgetting"]
            present = [lost[name] for name in names if name in lost]
            return statistics.fmean(present) if present else None

        return Value.of(of(result) for result in self.results)

    def average(self, key: str) -> Value | None:
        return Value.of(result.values["average"][key] for result in self.results)


@dataclass(frozen=True)
class Experiment:
    """All series of one data set, task, setup and protocol: what one table may show."""

    data: str
    task: str
    setup: str
    protocol: str
    holdout: float
    series: tuple[Series, ...]
    repeats: int = 0  # runs left out because another has the same settings and seed

    @property
    def classes(self) -> list[str]:
        return list(self.series[0].first.values["classes"])

    @property
    def groups(self) -> list[list[int]]:
        return [list(group) for group in self.series[0].first.values["groups"]]

    @property
    def has_background(self) -> bool:
        return bool(self.series[0].first.values["has_background"])

    @property
    def title(self) -> str:
        text = f"{self.data} {self.task} {self.setup}, protocol {self.protocol}"
        return text + (
            f", {100 * self.holdout:.0f} % of the training set held out and scored" if self.holdout else ""
        )


def load_results(runs: Iterable[RunLike]) -> list[Result]:
    """Reads run folders and records (or results that are already loaded)."""
    return [_load(run) for run in runs]


def _load(run: RunLike) -> Result:
    if isinstance(run, Mapping):
        return Result(run, None, {})
    folder = Path(run)
    path = folder / "results.json" if folder.is_dir() else folder
    if not path.is_file():
        raise TissError(f"{folder} is no run folder: it has no results.json")
    values = read_results(path)
    if not values["steps"]:
        raise TissError(f"{path}: no step is finished yet; continue with tiss run --resume")
    if not folder.is_dir():
        return Result(values, None, all_settings(values["config"]) if values.get("config") else {})
    return Result(values, folder, _settings(folder / "config.yaml"))


def _settings(path: Path) -> dict[str, Any]:
    settings = read_yaml(path) if path.is_file() else {}
    if not isinstance(settings, Mapping):
        raise TissError(f"{path}: no configuration of a run; restore the file or remove it")
    return all_settings(settings) if settings else {}


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """Run folders and records, also inside a folder or a grid; a grid's shared first steps are left out."""
    found: list[Path] = []
    for path in map(Path, paths):
        if (path / "results.json").is_file():
            found.append(path)
            continue
        inside = _inside(path) if path.is_dir() else [path] if path.is_file() and is_record(path) else []
        if not inside:
            raise TissError(f"{path} is no run folder and holds none: a run has a results.json")
        found += inside
    return list(dict.fromkeys(found))


def _inside(folder: Path) -> list[Path]:
    def match(name: str) -> list[Path]:
        return [*sorted(folder.glob(f"*/{name}")), *sorted(folder.glob(f"*/*/{name}"))]

    runs = [path.parent for path in match("results.json") if path.parent.parent.name != "bases"]
    files = [*sorted(folder.glob("*.json")), *sorted(folder.glob("*/*.json"))]
    return runs + [path for path in files if path.parent not in runs and is_record(path)]


def experiments(results: Sequence[Result]) -> list[Experiment]:
    """Sorts results into experiments, in the order in which they come, and series, in the usual order of methods.

    Of a method's variants the one with default settings comes first, the others by their labels.
    """
    keys = ("data", "task", "setup", "protocol", "holdout")
    tables: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        place = json.dumps([result.values.get(key) for key in keys] + [result.values["classes"]])
        tables.setdefault(place, {}).setdefault(_identity(result), []).append(result)
    return [_experiment(list(table.values())) for table in tables.values()]


def _experiment(members: list[list[Result]]) -> Experiment:
    values = members[0][0].values
    kept = [_one_per_seed(group) for group in members]
    variants = [_variant(group[0]) for group in kept]
    series = [
        Series(label, tuple(group), name)
        for label, group, name in zip(labels_of(variants), kept, network_labels(variants), strict=True)
    ]
    order = list(STYLES)
    series.sort(
        key=lambda one: (
            one.at_once,  # the upper bound comes last
            order.index(one.method) if one.method in order else len(order),
            natural(one.label),
        )
    )
    return Experiment(
        data=str(values["data"]),
        task=str(values["task"]),
        setup=str(values["setup"]),
        protocol=str(values["protocol"]),
        holdout=float(values.get("holdout") or 0),
        series=tuple(series),
        repeats=sum(map(len, members)) - sum(map(len, kept)),
    )


def _one_per_seed(group: list[Result]) -> list[Result]:
    """A run done twice, with the same settings and seed, says nothing about the deviation over seeds."""
    found: dict[Any, Result] = {}
    for result in group:
        found.setdefault(result.values["seed"], result)
    return list(found.values())


def _identity(result: Result) -> str:
    """What must agree for two runs to be seeds of one another."""
    values = result.values
    names = ("method", "encoder", "decoder", "finished")
    parts = [[values.get(name) for name in names], len(values["steps"]), what_was_done(result.settings)]
    return json.dumps(parts, default=str)


def _variant(result: Result) -> Variant:
    values = result.values
    name = str(values["method"])
    title = str(getattr(METHODS.get(name), "title", name)) if name in METHODS else name
    if result.exact_median:
        title += f" ({MEDIAN})"
    if not result.finished:
        title += f" (step {len(values['steps']) - 1} of {len(values['groups']) - 1})"
    return Variant(
        title, name, str(values.get("encoder")), str(values.get("decoder")), what_was_done(result.settings)
    )
