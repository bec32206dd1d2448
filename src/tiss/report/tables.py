"""Tables of finished runs as data: after the last step, step by step, class by class."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tiss.evaluation.scores import Mean, Scores, percent
from tiss.report.runs import MEDIAN_NOTE, Experiment, Series, Value

Mark = Literal["best", "second"]
Cell = Value | str | None
Facts = Mapping[str, str]  # columns of the CSV file and what a line says there
Getter = Callable[[Scores], float | None]
OURS = "this package"  # the source of results that are not the paper's
AVERAGES = {"with_background": "with background", "without_background": "without background"}
RECIPE = {
    "model.encoder": "encoder",
    "model.decoder": "decoder",
    "train.recipe": "recipe",
    "train.optimizer": "optimizer",
    "train.lr": "learning rate",
    "train.weight_decay": "weight decay",
    "train.warmup": "warm-up",
    "train.epochs": "epochs",
    "train.batch": "batch",
    "data.crop": "crop",
}
LATER = {"train.lr": "train.step_lr", "train.epochs": "train.step_epochs"}  # the values of later steps


@dataclass(frozen=True)
class Column:
    """A column of values; columns of one `group` have a common head."""

    name: str
    group: str = ""
    lower: bool = False  # whether less is better
    everyone: bool = False  # whether all families are compared here
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row: its labels, then one cell per column.

    Rows of one `family` are compared with each other; a row without a family is not ranked (an upper bound, a value
    averaged in another way). `rule` draws a line above it.
    """

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]
    family: str | None = "all"
    rule: bool = False
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A title, the heads of the label columns, columns, rows, and notes below."""

    title: str
    heads: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)

    def only(self, keep: Callable[[Column], bool]) -> Table:
        """The table with those columns that `keep` accepts and that have a value in some row."""
        filled = [
            any(row.cells[place] is not None for row in self.rows) for place in range(len(self.columns))
        ]
        kept = [place for place, column in enumerate(self.columns) if filled[place] and keep(column)]
        rows = tuple(replace(row, cells=tuple(row.cells[place] for place in kept)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in kept), rows=rows)

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Neighbouring columns of one group: (group, how many)."""
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and spans[-1][0] == column.group:
                spans[-1] = (column.group, spans[-1][1] + 1)
            else:
                spans.append((column.group, 1))
        return spans

    @property
    def marks(self) -> dict[tuple[int, int], Mark]:
        """The best and the second of each column and family, by (row, column); equal as shown means equal.

        A family of one is not ranked, nor is a column in which all values are equal.
        """
        found: dict[tuple[int, int], Mark] = {}
        for position, column in enumerate(self.columns):
            contests: dict[str, dict[int, float]] = {}
            for index, row in enumerate(self.rows):
                cell = row.cells[position]
                if isinstance(cell, Value) and row.family is not None:
                    family = "" if column.everyone else row.family
                    contests.setdefault(family, {})[index] = round(cell.mean, 1)
            for shown in contests.values():
                levels = sorted(set(shown.values()), reverse=not column.lower)
                names: tuple[Mark, Mark] = ("best", "second")
                for level, mark in zip(levels if len(levels) > 1 else (), names, strict=False):
                    found |= {(index, position): mark for index, value in shown.items() if value == level}
        return found


def cell_text(cell: Cell) -> str:
    """A cell for people; – where there is nothing.

    >>> cell_text(Value(71.26, 0.31, 3)), cell_text(None)
    ('71.3 ± 0.3', '–')
    """
    return percent(None) if cell is None else str(cell)


def mean_of(part: str, average: str) -> Getter:
    """A getter such as scores.old.with_background."""

    def get(scores: Scores) -> float | None:
        mean: Mean = getattr(scores, part)
        value: float | None = getattr(mean, average)
        return value

    return get


def averages_of(experiment: Experiment) -> list[str]:
    """The averages that make sense: where channel 0 is no class, only the one without it."""
    return list(AVERAGES) if experiment.has_background else ["without_background"]


def final_table(experiment: Experiment, joint: Value | None = None) -> Table:
    """One row per method: old, new and all classes after the last step, with and without the background.

    Where offline training is known (a series of the experiment, or `joint`, its mean of all classes), its share is
    shown; so are minutes and images per second, where records have them.
    """
    averages = averages_of(experiment)
    parts = ("old", "new", "all", "harmonic")
    columns = [_mean_column(name, average) for average in averages for name in (*parts, "over steps")]
    plain = {"average": AVERAGES["without_background"]}
    columns.append(Column("forgotten", "old classes", lower=True, facts=plain))
    columns += [Column(name) for name in ("all / offline", "minutes", "images/s")]
    everything = mean_of("all", averages[0])
    bound = next((one.value(-1, everything) for one in experiment.series if one.at_once), joint)
    rows = []
    for series in experiment.series:
        cells: list[Cell] = []
        for average in averages:
            cells += [series.value(-1, mean_of(part, average)) for part in parts]
            cells.append(None if series.at_once else series.average(average))
        cells += [series.mean_forgetting(), _share(series, everything, bound), *_speed(series)]
        rows.append(_row(series, (series.label,), cells))
    notes = [
        "Over steps: the mean of all, over the steps. Forgotten: points lost since the best earlier step, mean over "
        "the old classes without the background; negative: gained.",
        *(f"Trained differently: {line}." for line in recipe_lines(experiment.series)[1:]),
    ]
    title = f"{experiment.title}: mIoU in % after the last step"
    table = _table(experiment, "last step", title, ("method",), columns, rows, notes)
    return table.only(lambda _: True)


def _share(series: Series, everything: Getter, bound: Value | None) -> str | None:
    own = series.value(-1, everything)
    return None if own is None or bound is None or series.at_once else f"{own.mean / bound.mean:.3f}"


def _speed(series: Series) -> tuple[str | None, str | None]:
    """Minutes of training of all steps, mean over seeds, and images per second, median over steps and seeds."""
    seconds = [one.values.get("train_seconds") or [None] for one in series.results]
    speeds = [speed for one in series.results for speed in one.values.get("images_per_second") or [] if speed]
    known = not any(None in one for one in seconds)
    minutes = f"{statistics.fmean(map(sum, seconds)) / 60:.1f}" if known else None
    return minutes, f"{statistics.median(speeds):.0f}" if speeds else None


def step_table(experiment: Experiment) -> Table:
    """One row per method and step: the same means while the classes come in."""
    places = [(part, average) for average in averages_of(experiment) for part in ("old", "new", "all")]
    columns = [_mean_column(*place) for place in places]
    rows = []
    for series in experiment.series:
        for step in range(series.steps):
            cells = [series.value(step, mean_of(*place)) for place in places]
            name = "all at once" if series.at_once else str(step)
            row = _row(series, (series.label if step == 0 else "", name), cells, step)
            last = step == series.steps - 1
            rows.append(replace(row, rule=step == 0, family=row.family if last else None))
    title = f"{experiment.title}: mIoU in %, step by step"
    return _table(experiment, "steps", title, ("method", "step"), columns, rows).only(lambda _: True)


def class_table(experiment: Experiment) -> Table:
    """One row per method: every class's IoU after the last step, under the step that added it."""
    columns = [Column(experiment.classes[0])] if experiment.has_background else []
    columns += _class_columns(experiment, experiment.groups)

    def iou(series: Series, name: str) -> Value | None:
        return series.value(-1, lambda scores: scores.iou.get(name))

    rows = [
        _row(one, (one.label,), [iou(one, column.name) for column in columns]) for one in experiment.series
    ]
    title = f"{experiment.title}: IoU in % by class after the last step"
    return _table(experiment, "classes", title, ("method",), columns, rows)


def forgetting_table(experiment: Experiment) -> Table | None:
    """One row per method: points of its best earlier IoU that each class has lost; None with one step."""
    columns = _class_columns(experiment, experiment.groups[:-1], lower=True)
    several = [series for series in experiment.series if not series.at_once]
    rows = [_row(one, (one.label,), [one.forgetting(column.name) for column in columns]) for one in several]
    if not any(isinstance(cell, Value) for row in rows for cell in row.cells):
        return None
    title = f"{experiment.title}: points lost since a class's best step"
    return _table(experiment, "forgetting", title, ("method",), columns, rows)


def report_tables(experiment: Experiment, classes: bool = True) -> list[Table]:
    """All tables of one experiment."""
    tables: list[Table | None] = [final_table(experiment), step_table(experiment)]
    if classes:
        tables += [class_table(experiment), forgetting_table(experiment)]
    return [table for table in tables if table is not None]


def _mean_column(name: str, average: str) -> Column:
    return Column(name, AVERAGES[average], facts={"average": AVERAGES[average]})


def _class_columns(
    experiment: Experiment, groups: Sequence[Sequence[int]], lower: bool = False
) -> list[Column]:
    return [
        Column(experiment.classes[channel], f"step {step}", lower, facts={"added": str(step)})
        for step, group in enumerate(groups)
        for channel in group
    ]


def _row(series: Series, labels: tuple[str, ...], cells: Sequence[Cell], step: int | None = None) -> Row:
    """A row; finished methods are ranked, the upper bound and unfinished runs are not."""
    values = series.first.values
    facts = {
        "method": series.name or series.label,
        "architecture": str(values.get("decoder") or ""),
        "backbone": str(values.get("encoder") or ""),
        "step": "" if series.at_once else str(series.steps - 1 if step is None else step),
    }
    family = "all" if series.first.finished and not series.at_once else None
    return Row(labels, tuple(cells), family, series.at_once, facts)


def _table(
    experiment: Experiment,
    name: str,
    title: str,
    heads: tuple[str, ...],
    columns: Sequence[Column],
    rows: Sequence[Row],
    notes: Sequence[str] = (),
) -> Table:
    facts = {
        "table": name,
        "data": experiment.data,
        "task": experiment.task,
        "setup": experiment.setup,
        "protocol": experiment.protocol,
        "holdout": f"{experiment.holdout:g}",
        "source": OURS,
    }
    return Table(title, heads, tuple(columns), tuple(rows), (*notes_of(experiment), *notes), facts)


def notes_of(experiment: Experiment) -> list[str]:
    """What a reader must know about the values."""
    notes = []
    counts = sorted({len(series.results) for series in experiment.series})
    if counts[-1] > 1:
        seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        notes.append(f"Mean ± sample deviation over {seeds} seeds.")
    if experiment.repeats:
        notes.append(f"Left out: {experiment.repeats} with the settings and the seed of another run.")
    if experiment.has_background:
        notes.append("Old: classes of step 0, with the background where it counts. New: all later classes.")
    else:
        notes.append("Channel 0 is no class here: every mean is without it.")
    absent = sorted({name for series in experiment.series for name in series.first.steps[-1].absent})
    if absent:
        notes.append(f"No true pixel in the test, left out of every mean: {', '.join(absent)}.")
    return notes + median_notes(experiment.series)


def median_notes(several: Iterable[Series]) -> list[str]:
    """The warning about PLOP's runs with the exact median, where there are any."""
    return [MEDIAN_NOTE] if any(series.first.exact_median for series in several) else []


def recipe_lines(several: Sequence[Series]) -> list[str]:
    """How most rows were trained, in one line; then, by their labels, how others differ from that."""
    parts = [_recipe(series) for series in several]
    usual = max(parts, key=parts.count, default=[])
    lines = [" · ".join(usual)] if usual else []
    others: dict[str, list[str]] = {}
    for series, own in zip(several, parts, strict=True):
        different = [part for part in own if not any(f"{one},".startswith(f"{part},") for one in usual)]
        if different:
            others.setdefault(" · ".join(different), []).append(series.label)
    return lines + [f"{', '.join(labels)}: {text}" for text, labels in others.items()]


def _recipe(series: Series) -> list[str]:
    """The settings that matter most, each in words."""
    settings = series.first.settings
    parts = []
    for key, text in RECIPE.items():
        if settings.get(key) is not None:
            later = None if series.at_once else settings.get(LATER.get(key, ""))
            more = "" if later is None else f", in later steps {later}"
            parts.append(f"{text} {settings[key]}{more}")
    return parts
