"""What lies in results/: runs by data set, task, setup and encoder; measured similarities; benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiss.engine.settings import changed_settings, what_was_done
from tiss.errors import TissError
from tiss.files import read_json
from tiss.report.runs import Experiment, Result, Series, Value, experiments, find_runs, load_results
from tiss.report.similarity import KIND, Similarities
from tiss.report.tables import averages_of, figure

TASKS = ("15-1", "15-5", "19-1")  # in this order; others after them
SETUPS = ("overlapped", "disjoint")
CNN = ("resnet",)
AGAIN = "-again"  # results/voc-again: runs of results/voc, done a second time


@dataclass(frozen=True)
class Block:
    """The runs of one table: one data set, task, setup, protocol, holdout, and one architecture."""

    experiment: Experiment
    encoder: str
    decoder: str
    title: str  # of the data set
    side: int | None  # shorter side of the source pictures
    command: str | None  # makes all of these runs at once, where there is such a command
    note: str | None  # what a reader must know about them
    apart: str | None = (
        None  # in what these runs differ from the others of their kind: never compared with them
    )
    joint: Series | None = None  # offline training with the same network, of whatever task: it knows no steps

    @property
    def name(self) -> str:
        """A short name, fit for files."""
        one = self.experiment
        parts = [one.data, one.task, one.setup, *([] if one.protocol == "paper" else [one.protocol])]
        parts += [f"holdout{one.holdout:g}"] if one.holdout else []
        parts += [self.apart.replace(" ", "-")] if self.apart else []
        return "-".join([*parts, self.encoder])

    @property
    def heading(self) -> str:
        one = self.experiment
        text = f"{self.title} {one.task} {one.setup}, {self.encoder} with {self.decoder}"
        text += "" if one.protocol == "paper" else f", protocol {one.protocol}"
        text += f", {self.apart}" if self.apart else ""
        return text + (f", scored on {100 * one.holdout:.0f} % held out of training" if one.holdout else "")

    @property
    def source(self) -> str:
        """How large the pictures were, and what the network saw."""
        settings = self.experiment.series[0].first.settings
        size = settings.get("eval.size") or settings.get("data.crop")
        if self.side is None or size is None:
            return "size of the source pictures not noted"
        if size == self.side:
            return f"{self.side} px"
        return f"{self.side} px, {'enlarged' if size > self.side else 'reduced'} to {size}"

    @property
    def is_transformer(self) -> bool:
        return not self.encoder.startswith(CNN)

    def series(self, method: str) -> Series | None:
        """The series of a method as published: its own default settings, and of those the one with most seeds."""
        found = [series for series in self.experiment.series if series.method == method]
        plain = [series for series in found if not changed_settings(method, series.first.settings)] or found
        return max(plain, key=lambda series: len(series.results), default=None)

    @property
    def offline(self) -> Series | None:
        return self.series("offline")

    def last(self, series: Series, part: str, average: str | None = None) -> Value | None:
        """A mean after the last step; with the background where that is a class, unless told otherwise."""
        return series.value(-1, figure(part, average or averages_of(self.experiment)[0]))


def minutes_of(series: Series) -> float | None:
    """Training time of all steps of one run, mean over the seeds; None where a step's time is unknown."""
    totals = []
    for result in series.results:
        seconds = result.values.get("train_seconds") or [None]
        if None in seconds:
            return None
        totals.append(sum(seconds) / 60)
    return statistics.fmean(totals)


def speed_of(series: Series) -> float | None:
    """Images a second from end to end, median over steps and seeds."""
    speeds = [
        speed
        for one in series.results
        for speed in one.values.get("images_per_second") or []
        if speed is not None
    ]
    return statistics.median(speeds) if speeds else None


def blocks(results: Path) -> list[Block]:
    """All tables that results/ has runs for, in the order in which a page shows them."""
    folders = [path for path in sorted(results.iterdir()) if path.is_dir() and not path.name.endswith(AGAIN)]
    found = [block for folder in folders for block in _folder_blocks(folder)]
    joint = {_network(block): block.offline for block in reversed(found) if block.offline is not None}
    return sorted((replace(block, joint=joint.get(_network(block))) for block in found), key=_order)


def compared(found: Iterable[Block]) -> list[Block]:
    """Those whose runs may stand beside each other."""
    return [block for block in found if block.apart is None]


def _network(block: Block) -> tuple[Any, ...]:
    """What offline training depends on: all classes are learnt at once, in whatever steps others learn them."""
    one = block.experiment
    return one.data, one.protocol, one.holdout, block.encoder, block.decoder, block.apart


def _folder_blocks(folder: Path) -> Iterator[Block]:
    try:
        results = load_results(find_runs([folder]))
    except TissError:  # it holds something else than runs
        return
    about = read_json(folder / "about.json") if (folder / "about.json").is_file() else {}
    architectures: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        key = (str(result.values["encoder"]), str(result.values["decoder"]))
        architectures.setdefault(key, []).append(result)
    for (encoder, decoder), members in architectures.items():
        for experiment in experiments(members):
            yield Block(
                experiment,
                encoder,
                decoder,
                about.get("title", experiment.data),
                about.get("side"),
                about.get("command"),
                about.get("note"),
                about.get("apart"),
            )


def _order(block: Block) -> tuple[Any, ...]:
    one = block.experiment
    task = TASKS.index(one.task) if one.task in TASKS else len(TASKS)
    setup = SETUPS.index(one.setup)
    kind = block.apart is not None, not block.is_transformer
    return bool(one.holdout), one.data != "voc", one.data, setup, task, *kind, block.name


def similarities(results: Path) -> list[Similarities]:
    """Every similarity figure's numbers."""
    found = [read_json(path) for path in sorted(results.glob("*/*.json"))]
    return [Similarities.from_json(one) for one in found if isinstance(one, dict) and one.get("kind") == KIND]


def benchmarks(results: Path) -> dict[str, dict[str, Any]]:
    """Every benchmark by the name of its file."""
    return {path.stem: read_json(path) for path in sorted((results / "bench").glob("*.json"))}


def repeated(results: Path) -> list[tuple[Result, Result]]:
    """Runs that were done twice with the same settings and seed: the one in the tables, and the second."""
    pairs = []
    for folder in sorted(results.glob(f"*{AGAIN}")):
        first = load_results(find_runs([folder.with_name(folder.name.removesuffix(AGAIN))]))
        for again in load_results(find_runs([folder])):
            pairs += [(one, again) for one in first if _identity(one) == _identity(again)]
    return pairs


def notes_on_repeats(results: Path) -> list[str]:
    """What else was done a second time, in words."""
    found = [read_json(path) for path in sorted(results.glob(f"*{AGAIN}/about.json"))]
    return [one["note"] for one in found if "note" in one]


def _identity(result: Result) -> tuple[Any, ...]:
    values = result.values
    places = [values[key] for key in ("data", "task", "setup", "protocol", "holdout", "method", "seed")]
    return (*map(str, places), *sorted(map(str, what_was_done(result.settings).items())))
