"""The tables of a report: after the last step, step by step, class by class."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console

from tiss.evaluation.scores import Mean, Scores
from tiss.report.recipe import recipe_lines
from tiss.report.render import print_table
from tiss.report.runs import Experiment, RunLike, Series, Value, experiments, load_results
from tiss.report.table import OURS, Cell, Column, Row, Table

Figure = Callable[[Scores], float | None]
AVERAGES = {"with_background": "with background", "without_background": "without background"}


def figure(part: str, average: str) -> Figure:
    """A getter such as scores.old.with_background."""

    def get(scores: Scores) -> float | None:
        mean: Mean = getattr(scores, part)
        value: float | None = getattr(mean, average)
        return value

    return get


def class_figure(name: str) -> Figure:
    """A getter of one class's IoU."""
    return lambda scores: scores.iou.get(name)


def averages_of(experiment: Experiment) -> list[str]:
    """The ways of averaging that make sense: where channel 0 is no class, only the one without it."""
    return list(AVERAGES) if experiment.has_background else ["without_background"]


def final_table(experiment: Experiment) -> Table:
    """One row a method: old, new and all classes after the last step, with and without the background."""
    averages = averages_of(experiment)
    parts = ("old", "new", "all", "harmonic")
    columns = [_mean_column(name, average) for average in averages for name in (*parts, "over steps")]
    columns.append(
        Column("forgotten", "old classes", lower=True, facts={"average": AVERAGES["without_background"]})
    )
    rows = []
    for series in experiment.series:
        cells: list[Cell] = []
        for average in averages:
            cells += [series.value(-1, figure(part, average)) for part in parts]
            cells.append(None if series.at_once else series.average(average))
        cells.append(series.mean_forgetting())
        rows.append(Row((series.label,), tuple(cells), _family(series), series.at_once, _row_facts(series)))
    title = f"{experiment.title}: mIoU in % after the last step"
    notes = (
        "Over steps: the mean of all, over the steps. Forgotten: the mean, over old classes without the background,"
        " of the points that each lost since its best step before; less than 0: gained.",
    )
    return Table(
        title,
        ("method",),
        tuple(columns),
        tuple(rows),
        (*notes_of(experiment), *notes, *unlike(experiment)),
        _table_facts(experiment, "last step"),
    ).without_empty_columns()


def step_table(experiment: Experiment) -> Table:
    """One row a method and step: the same figures while the classes come in."""
    averages = averages_of(experiment)
    parts = ("old", "new", "all")
    columns = [_mean_column(part, average) for average in averages for part in parts]
    rows = []
    for series in experiment.series:
        for step in range(series.steps):
            cells = tuple(series.value(step, figure(part, average)) for average in averages for part in parts)
            name = "all at once" if series.at_once else str(step)
            family = _family(series) if step == series.steps - 1 else None
            labels = (series.label if step == 0 else "", name)
            rows.append(Row(labels, cells, family, step == 0, _row_facts(series, step)))
    title = f"{experiment.title}: mIoU in %, step by step"
    return Table(
        title,
        ("method", "step"),
        tuple(columns),
        tuple(rows),
        notes_of(experiment),
        _table_facts(experiment, "steps"),
    ).without_empty_columns()


def class_table(experiment: Experiment) -> Table:
    """One row a method: every class's IoU after the last step, the step that brought it above."""
    columns = [Column("background", "")] if experiment.has_background else []
    for index, group in enumerate(experiment.groups):
        columns += [_class_column(experiment, channel, index) for channel in group]
    rows = []
    for series in experiment.series:
        cells = tuple(series.value(-1, class_figure(column.name)) for column in columns)
        rows.append(Row((series.label,), cells, _family(series), series.at_once, _row_facts(series)))
    title = f"{experiment.title}: IoU in % by class after the last step"
    facts = _table_facts(experiment, "classes")
    return Table(title, ("method",), tuple(columns), tuple(rows), notes_of(experiment), facts)


def forgetting_table(experiment: Experiment) -> Table | None:
    """One row a method: how many points of its best earlier IoU each class has lost; None with one step."""
    columns = []
    for index, group in enumerate(experiment.groups[:-1]):
        columns += [_class_column(experiment, channel, index, lower=True) for channel in group]
    rows = tuple(
        Row(
            (series.label,),
            tuple(series.forgetting(column.name) for column in columns),
            _family(series),
            facts=_row_facts(series),
        )
        for series in experiment.series
        if not series.at_once
    )
    if not columns or not any(isinstance(cell, Value) for row in rows for cell in row.cells):
        return None
    title = f"{experiment.title}: points lost since a class's best step"
    facts = _table_facts(experiment, "forgetting")
    return Table(title, ("method",), tuple(columns), rows, notes_of(experiment), facts)


def _mean_column(name: str, average: str) -> Column:
    return Column(name, AVERAGES[average], facts={"average": AVERAGES[average]})


def _class_column(experiment: Experiment, channel: int, step: int, lower: bool = False) -> Column:
    return Column(experiment.classes[channel], f"step {step}", lower, facts={"learnt": str(step)})


def _table_facts(experiment: Experiment, name: str) -> dict[str, str]:
    return {
        "table": name,
        "data": experiment.data,
        "task": experiment.task,
        "setup": experiment.setup,
        "protocol": experiment.protocol,
        "holdout": f"{experiment.holdout:g}",
        "source": OURS,
    }


def _row_facts(series: Series, step: int | None = None) -> dict[str, str]:
    """`step`: None for the last one; where all was learnt at once there is no number to give."""
    values = series.first.values
    return {
        "method": series.name,
        "architecture": str(values.get("decoder") or ""),
        "backbone": str(values.get("encoder") or ""),
        "step": "" if series.at_once else str(series.steps - 1 if step is None else step),
    }


def _family(series: Series) -> str | None:
    """Methods that have finished compete; the upper bound and runs under way do not."""
    return "all" if series.first.finished and not series.at_once else None


def notes_of(experiment: Experiment) -> tuple[str, ...]:
    """What a reader must know about the figures."""
    notes = []
    counts = sorted({len(series.results) for series in experiment.series})
    if counts[-1] > 1:
        seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        notes.append(f"Mean ± sample deviation over {seeds} seeds.")
    if experiment.repeats:
        runs = "1 run has" if experiment.repeats == 1 else f"{experiment.repeats} runs have"
        notes.append(f"Left out: {runs} the settings and the seed of another.")
    if not experiment.has_background:
        notes.append("Channel 0 is no class here: every mean is without it.")
    else:
        notes.append(
            "Old: classes of step 0; the background counts with them where it counts. New: all later classes."
        )
    absent = sorted({name for series in experiment.series for name in _absent(series)})
    if absent:
        notes.append(f"No true pixel in the test, left out of every mean: {', '.join(absent)}.")
    return tuple(notes)


def unlike(experiment: Experiment) -> tuple[str, ...]:
    """Who was trained otherwise than most: such rows stand beside the others, and are no like for like."""
    return tuple(f"Trained otherwise: {line}." for line in recipe_lines(experiment.series)[1:])


def _absent(series: Series) -> tuple[str, ...]:
    return series.first.steps[-1].absent


def report_tables(experiment: Experiment, classes: bool = True) -> list[Table]:
    """All tables of one experiment."""
    tables: list[Table | None] = [final_table(experiment), step_table(experiment)]
    if classes:
        tables += [class_table(experiment), forgetting_table(experiment)]
    return [table for table in tables if table is not None]


def print_results(runs: Iterable[RunLike], console: Console | None = None, classes: bool = False) -> None:
    """Prints the tables of finished runs (folders or results): the last step, then step by step."""
    for experiment in experiments(load_results(runs)):
        for table in report_tables(experiment, classes):
            print_table(table, console)
