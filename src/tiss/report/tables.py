"""Tables of finished runs as data: after the last step, step by step, class by class."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from tiss.evaluation.scores import BACKGROUND_FALL, background_falls, percent
from tiss.report.runs import Experiment, Series, Value

Cell = Value | str | None
Facts = Mapping[str, str]  # columns of the CSV file and what a line says there
OURS = "this package"  # the source of results that are not the paper's
RANKED = "Best bold, second underlined."
PARTS = ("old", "new", "all")
MEDIAN_NOTE = (
    "PLOP (exact median): `official: false`, the exact median of each class's entropy where the published code has "
    "thresholds; not PLOP as published."
)
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

    def take(self, places: Sequence[int]) -> Table:
        """The table with these columns."""
        rows = tuple(replace(row, cells=tuple(row.cells[place] for place in places)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in places), rows=rows)

    def only(self, keep: Callable[[Column], bool] = lambda _: True) -> Table:
        """The table with those columns that `keep` accepts and that have a value in some row."""
        filled = [any(row.cells[at] is not None for row in self.rows) for at in range(len(self.columns))]
        return self.take([at for at, column in enumerate(self.columns) if filled[at] and keep(column)])

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Neighbouring columns of one group: (group, how many)."""
        return [(group, len([*them])) for group, them in groupby(column.group for column in self.columns)]

    @property
    def marks(self) -> dict[tuple[int, int], str]:
        """Which cells are "best" and "second" of their column and family; equal as shown means equal.

        A family of one is not ranked, nor is a column in which all values are equal.
        """
        found: dict[tuple[int, int], str] = {}
        for at, column in enumerate(self.columns):
            contests: dict[str, dict[int, float]] = {}
            for index, row in enumerate(self.rows):
                cell = row.cells[at]
                if isinstance(cell, Value) and row.family is not None:
                    family = "" if column.everyone else row.family
                    contests.setdefault(family, {})[index] = round(cell.mean, 1)
            for shown in contests.values():
                levels = sorted(set(shown.values()), reverse=not column.lower)
                for level, mark in zip(levels, ("best", "second") if len(levels) > 1 else (), strict=False):
                    found |= {(index, at): mark for index, value in shown.items() if value == level}
        return found

    @property
    def texts(self) -> list[list[str]]:
        """The cells as people read them; – where there is nothing."""
        return [[percent(None) if cell is None else str(cell) for cell in row.cells] for row in self.rows]


Measure = tuple[Column, Callable[..., Cell]]  # a column and the value of a series after a step


def final_table(experiment: Experiment, joint: Value | None = None) -> Table:
    """One row per method: old, new and all classes after the last step, with and without the background.

    Where offline training is known (a series of the experiment, or `joint`, its mean of all classes), its share is
    shown; so are minutes and images per second, where records have them.
    """
    bound = next((one.mean("all") for one in experiment.series if one.at_once), joint)
    measures: list[Measure] = []
    for average in experiment.averages:
        measures += [_mean(part, average) for part in (*PARTS, "harmonic")]
        measures.append((_column("over steps", average), lambda one, _, key=average: one.average(key)))
    old = [experiment.classes[channel] for channel in experiment.groups[0]]
    forgotten = replace(_column("forgotten", "without_background"), group="old classes", lower=True)
    measures += [
        (forgotten, lambda one, _: one.forgetting(*old)),
        (Column("all / offline"), lambda one, _: _share(one, bound)),
        (Column("minutes"), lambda one, _: _minutes(one)),
        (Column("images/s"), lambda one, _: _speed(one)),
    ]
    notes = [
        "Over steps: the mean of all, over the steps. Forgotten: points lost since the best earlier step, mean over "
        "the old classes without the background; negative: gained.",
        *(f"Trained differently: {line}." for line in recipe_lines(experiment.series)[1:]),
    ]
    return _table(experiment, "last step", "mIoU in % after the last step", measures, notes=notes).only()


def _column(name: str, average: str) -> Column:
    words = average.replace("_", " ")
    return Column(name, words, facts={"average": words})


def _mean(part: str, average: str) -> Measure:
    return _column(part, average), lambda one, step: one.mean(part, step, average)


def _share(one: Series, bound: Value | None) -> Cell:
    own = one.mean("all")
    return None if own is None or bound is None or one.at_once else f"{own.mean / bound.mean:.3f}"


def _minutes(one: Series) -> Cell:
    """Of training, over all steps, mean over seeds."""
    seconds = [run.values.get("train_seconds") or [None] for run in one.results]
    known = not any(None in times for times in seconds)
    return f"{statistics.fmean(map(sum, seconds)) / 60:.1f}" if known else None


def _speed(one: Series) -> Cell:
    """Images per second, median over steps and seeds."""
    speeds = [speed for run in one.results for speed in run.values.get("images_per_second") or [] if speed]
    return f"{statistics.median(speeds):.0f}" if speeds else None


def step_table(experiment: Experiment) -> Table:
    """One row per method and step: the same means while the classes come in."""
    measures = [_mean(part, average) for average in experiment.averages for part in PARTS]
    return _table(experiment, "steps", "mIoU in %, step by step", measures, by_step=True).only()


def class_table(experiment: Experiment) -> Table:
    """One row per method: every class's IoU after the last step, under the step that added it."""
    columns = [Column(experiment.classes[0])] if experiment.has_background else []
    columns += _class_columns(experiment, experiment.groups)
    what = "IoU in % by class after the last step"
    return _table(experiment, "classes", what, _by_class(columns, Series.iou))


def forgetting_table(experiment: Experiment) -> Table | None:
    """One row per method: points of its best earlier IoU that each class has lost; None with one step."""
    columns = _class_columns(experiment, experiment.groups[:-1], lower=True)
    measures = _by_class(columns, Series.forgetting)
    several = [one for one in experiment.series if not one.at_once]
    table = _table(experiment, "forgetting", "points lost since a class's best step", measures, several)
    return table if any(isinstance(cell, Value) for row in table.rows for cell in row.cells) else None


def _by_class(columns: Sequence[Column], get: Callable[[Series, str], Value | None]) -> list[Measure]:
    return [(column, lambda one, _, name=column.name: get(one, name)) for column in columns]


def report_tables(experiment: Experiment, classes: bool = True) -> list[Table]:
    """All tables of one experiment."""
    tables: list[Table | None] = [final_table(experiment), step_table(experiment)]
    tables += [class_table(experiment), forgetting_table(experiment)] if classes else []
    return [table for table in tables if table is not None]


def _class_columns(
    experiment: Experiment, groups: Sequence[Sequence[int]], lower: bool = False
) -> list[Column]:
    return [
        Column(experiment.classes[channel], f"step {step}", lower, facts={"added": str(step)})
        for step, group in enumerate(groups)
        for channel in group
    ]


def _table(
    experiment: Experiment,
    name: str,
    what: str,
    measures: Sequence[Measure],
    several: Sequence[Series] | None = None,
    notes: Sequence[str] = (),
    by_step: bool = False,
) -> Table:
    """A row per series, or per series and step; finished methods are ranked, the upper bound is not."""
    rows = []
    for series in experiment.series if several is None else several:
        for step in range(0 if by_step else series.steps - 1, series.steps):
            ended = step == series.steps - 1 and series.first.finished and not series.at_once
            facts = {
                "method": series.name or series.label,
                "architecture": series.first.decoder,
                "backbone": series.first.encoder,
                "step": "" if series.at_once else str(step),
            }
            labels: tuple[str, ...] = (series.label,)
            if by_step:
                labels = series.label if step == 0 else "", "all at once" if series.at_once else str(step)
            rule = step == 0 if by_step else series.at_once
            cells = tuple(get(series, step) for _, get in measures)
            rows.append(Row(labels, cells, "all" if ended else None, rule, facts))
    place = {key: getattr(experiment, key) for key in ("data", "task", "setup", "protocol")}
    place["setup"] += experiment.variant
    return Table(
        f"{experiment.title}: {what}",
        ("method", "step") if by_step else ("method",),
        tuple(column for column, _ in measures),
        tuple(rows),
        (*notes_of(experiment), *notes),
        {"table": name, **place, "holdout": f"{experiment.holdout:g}", "source": OURS},
    )


def notes_of(experiment: Experiment) -> list[str]:
    """What a reader must know about the values."""
    notes = []
    counts = sorted({len(series.results) for series in experiment.series})
    if counts[-1] > 1:
        seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        what = "seeds and class orders" if experiment.series[0].first.random_order else "seeds"
        notes.append(f"Mean ± sample deviation over {seeds} {what}.")
    if experiment.repeats:
        notes.append(f"Left out: {experiment.repeats} with the settings and the seed of another run.")
    if experiment.has_background:
        notes.append("Old: classes of step 0, with the background where it counts. New: all later classes.")
    else:
        notes.append("Channel 0 is no class here: every mean is without it.")
    if any(series.first.values.get("memory") for series in experiment.series):
        notes.append("Memory n: n training images of earlier steps are kept and shown again.")
    absent = sorted({name for series in experiment.series for name in series.first.steps[-1].absent})
    if absent:
        notes.append(f"No true pixel in the test, left out of every mean: {', '.join(absent)}.")
    return notes + background_notes(experiment) + median_notes(experiment.series)


def background_notes(experiment: Experiment) -> list[str]:
    """The warning about methods that lost much of the background in one step."""
    found = []
    for series in experiment.series:
        values = [series.iou(experiment.classes[0], step) for step in range(series.steps)]
        ious = [None if value is None else value.mean for value in values]
        steps = [
            f"{percent(ious[step - 1])} → {percent(ious[step])} in step {step}"
            for step in background_falls(ious)
        ]
        found += [f"{series.label} ({', '.join(steps)})"] if steps else []
    what = f"Warning: the background's IoU fell by more than {BACKGROUND_FALL:g} points"
    return [f"{what}: {'; '.join(found)}."] if found else []


def median_notes(several: Iterable[Series]) -> list[str]:
    """The warning about PLOP's runs with the exact median, where there are any."""
    return [MEDIAN_NOTE] if any(series.first.exact_median for series in several) else []


def recipe_lines(several: Sequence[Series]) -> list[str]:
    """How most rows were trained, in one line; then, by their labels, how others differ from that."""
    parts = []
    for series in several:
        settings, own = series.first.settings, []
        for key, text in RECIPE.items():
            later = None if series.at_once else settings.get(LATER.get(key, ""))
            if settings.get(key) is not None:
                own.append(f"{text} {settings[key]}" + ("" if later is None else f", in later steps {later}"))
        parts.append(own)
    usual = max(parts, key=parts.count, default=[])
    others: dict[str, list[str]] = {}
    for series, own in zip(several, parts, strict=True):
        different = [part for part in own if not any(f"{one},".startswith(f"{part},") for one in usual)]
        if different:
            others.setdefault(" · ".join(different), []).append(series.label)
    lines = [" · ".join(usual)] if usual else []
    return lines + [f"{', '.join(labels)}: {text}" for text, labels in others.items()]
