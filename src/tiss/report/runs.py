"""Finished runs, read back and put in order.

Runs that differ in their seed alone form a series, series of one task an experiment.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tiss.engine.results import read_results
from tiss.engine.run_folder import all_settings, what_was_done
from tiss.errors import TissError
from tiss.evaluation.scores import Scores, percent
from tiss.files import read_yaml
from tiss.methods.base import METHODS
from tiss.report.labels import STYLES, labels_of, natural
from tiss.report.records import is_record

RunLike = str | Path | Mapping[str, Any]
# results that may share a table agree in these
PLACE = ("data", "task", "setup", "protocol", "holdout", "lists", "eval_images")


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

    @property
    def method(self) -> str:
        return str(self.values["method"])

    @property
    def encoder(self) -> str:
        return str(self.values.get("encoder") or "")

    @property
    def decoder(self) -> str:
        return str(self.values.get("decoder") or "")

    @cached_property
    def steps(self) -> list[Scores]:
        return [Scores.from_json(entry) for entry in self.values["steps"]]

    @cached_property
    def done(self) -> dict[str, Any]:
        """The settings that say what was done, not where."""
        return what_was_done(self.settings)

    @property
    def random_order(self) -> bool:
        """Whether the classes came in a random order: such runs are pooled, each order like another seed."""
        return str(self.order).startswith("random:")

    @property
    def order(self) -> Any:
        return self.values.get("order", self.settings.get("order"))

    @property
    def place(self) -> list[Any]:
        """What results that may share a table agree in."""
        kept = {"lists": self.done.get("lists"), "eval_images": self.settings.get("eval.images")}
        classes, groups = self.values["classes"], self.values["groups"]
        known = [sorted(classes), list(map(len, groups))] if self.random_order else [classes]
        return [self.values.get(key, kept.get(key)) for key in PLACE] + known

    @property
    def finished(self) -> bool:
        return bool(self.values["finished"])

    @property
    def exact_median(self) -> bool:
        """Whether a run of PLOP has not the published thresholds but the exact median, as in version 0.1."""
        return self.method in ("plop", "ploplong") and self.settings.get("method.official") is False

    @property
    def at_once(self) -> bool:
        """Whether every class was trained in one step, though the task has several."""
        return self.finished and len(self.values["steps"]) == 1 and len(self.values["groups"]) > 1

    @property
    def title(self) -> str:
        title = str(METHODS.get(self.method).title) if self.method in METHODS else self.method
        title += " (exact median)" if self.exact_median else ""
        title += f" (memory {memory})" if (memory := self.values.get("memory")) else ""
        last = len(self.values["groups"]) - 1
        return title if self.finished else f"{title} (step {len(self.values['steps']) - 1} of {last})"


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
        return self.first.method

    @property
    def at_once(self) -> bool:
        return self.first.at_once

    @property
    def steps(self) -> int:
        return len(self.first.values["steps"])

    def mean(self, part: str, step: int = -1, average: str = "headline") -> Value | None:
        """The mIoU of old, new or all classes; by default with the background where that is a class."""
        return Value.of(getattr(getattr(one.steps[step], part), average) for one in self.results)

    def average(self, key: str) -> Value | None:
        """The mean of all classes, over the steps."""
        return None if self.at_once else Value.of(one.values["average"][key] for one in self.results)

    def iou(self, name: str, step: int = -1) -> Value | None:
        """A class's IoU after a step."""
        return Value.of(one.steps[step].iou.get(name) for one in self.results)

    def forgetting(self, *names: str) -> Value | None:
        """Points of the best earlier IoU that are lost after the last step, mean over the classes."""
        lost = [one.values["steps"][-1]["forgetting"] for one in self.results]
        known = [[one[name] for name in names if name in one] for one in lost]
        return Value.of(statistics.fmean(values) if values else None for values in known)


@dataclass(frozen=True)
class Experiment:
    """All series of one data set, task, setup and protocol: what one table may show."""

    data: str
    task: str
    setup: str
    protocol: str
    holdout: float
    classes: list[str]
    groups: list[list[int]]  # the channels that each step adds
    has_background: bool
    series: tuple[Series, ...]
    variant: str = ""  # what else sets these results apart
    trial: bool = False  # tested on fewer images
    repeats: int = 0  # runs left out because another has the same settings and seed

    @property
    def averages(self) -> list[str]:
        """The averages that make sense: where channel 0 is no class, only the one without it."""
        return ["with_background", "without_background"][0 if self.has_background else 1 :]

    @property
    def title(self) -> str:
        text = f"{self.data} {self.task} {self.setup}{self.variant}, protocol {self.protocol}"
        held = f", {100 * self.holdout:.0f} % of the training set held out and scored" if self.holdout else ""
        return text + held


def load_results(runs: Iterable[RunLike]) -> list[Result]:
    """Reads run folders and records (or results that are already loaded)."""
    return [Result(run, None, {}) if isinstance(run, Mapping) else _load(Path(run)) for run in runs]


def _load(run: Path) -> Result:
    path = run / "results.json" if run.is_dir() else run
    if not path.is_file():
        raise TissError(f"{run} is no run folder: it has no results.json")
    values = read_results(path)
    if not values["steps"]:
        raise TissError(f"{path}: no step is finished yet; continue with tiss run --resume")
    settings, config = values.get("config") or {}, run / "config.yaml"
    if config.is_file():
        settings = read_yaml(config)
        if not isinstance(settings, Mapping):
            raise TissError(f"{config}: no configuration of a run; restore the file or remove it")
    return Result(values, run if run.is_dir() else None, all_settings(settings) if settings else {})


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """Run folders and records, also inside a folder or a grid; a grid's shared first steps are left out."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = [path] if (path / "results.json").is_file() or (path.is_file() and is_record(path)) else []
        if not inside and path.is_dir():
            files = [file for depth in ("*", "*/*") for file in sorted(path.glob(f"{depth}/results.json"))]
            inside = [file.parent for file in files if file.parent.parent.name != "bases"]
            files = [file for depth in ("*", "*/*") for file in sorted(path.glob(f"{depth}.json"))]
            inside += [file for file in files if file.parent not in inside and is_record(file)]
        if not inside:
            raise TissError(f"{path} is no run folder and holds none: a run has a results.json")
        found += inside
    return list(dict.fromkeys(found))


def experiments(results: Sequence[Result]) -> list[Experiment]:
    """Sorts results into experiments, in the order in which they come, and series, in the usual order of methods.

    Of a method's variants the one with default settings comes first, the others by their labels.
    """
    tables: dict[str, dict[str, dict[Any, Result]]] = {}
    counts: dict[str, int] = {}
    for result in results:
        values = result.values
        place = json.dumps(result.place)
        done = {**result.done, "order": "random"} if result.random_order else result.done
        same = [result.method, result.encoder, result.decoder, result.finished, len(values["steps"])]
        series = tables.setdefault(place, {}).setdefault(json.dumps([same, done], default=str), {})
        series.setdefault(
            (values["seed"], str(result.order)), result
        )  # done twice, it says nothing about the deviation
        counts[place] = counts.get(place, 0) + 1
    return [
        _experiment([[*one.values()] for one in table.values()], counts[p]) for p, table in tables.items()
    ]


def _experiment(members: list[list[Result]], count: int) -> Experiment:
    firsts = [group[0] for group in members]
    names: dict[int, str] = {}  # alike only where encoder or decoder differ
    for network in {(one.encoder, one.decoder) for one in firsts}:
        places = [i for i, one in enumerate(firsts) if (one.encoder, one.decoder) == network]
        names |= zip(places, labels_of([firsts[place] for place in places]), strict=True)
    series = [Series(label, tuple(members[i]), names[i]) for i, label in enumerate(labels_of(firsts))]
    order = {method: place for place, method in enumerate(STYLES)}
    # the upper bound comes last
    series.sort(key=lambda one: (one.at_once, order.get(one.method, len(order)), natural(one.label)))
    values = firsts[0].values
    about: dict[str, Any] = {key: values[key] for key in ("classes", "groups", "has_background")}
    about |= {key: str(values[key]) for key in ("data", "task", "setup", "protocol")}
    lists, images = firsts[0].place[5:7]
    variant = ", random class orders" if firsts[0].random_order else ""
    variant += (f", lists {lists}" if lists else "") + (f", tested on {images} images only" if images else "")
    variant += ", classes of IoU 0 left out of means" if values.get("zeros") else ""
    holdout, repeats = float(values.get("holdout") or 0), count - sum(map(len, members))
    return Experiment(
        series=tuple(series), holdout=holdout, repeats=repeats, variant=variant, trial=bool(images), **about
    )
