"""docs/results.md: a table for every architecture on every task, with the command that repeats each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from tiss.evaluation.scores import percent
from tiss.report.differences import difference_figure
from tiss.report.paper_tables import fitting_tables, paper_table
from tiss.report.plots import forgetting_map, miou_over_steps
from tiss.report.recipe import recipe_lines
from tiss.report.records import command_of_record
from tiss.report.render import to_markdown
from tiss.report.runs import Experiment, Result, Series
from tiss.report.similarity import Similarities, similarity_figure
from tiss.report.table import Cell, Column, Row, Table
from tiss.report.tables import averages_of, class_table, step_table
from tools.results.bench import bench_section
from tools.results.claims import ABLATION
from tools.results.kept import (
    Block,
    benchmarks,
    blocks,
    compared,
    minutes_of,
    notes_on_repeats,
    repeated,
    similarities,
    speed_of,
)
from tools.results.tasks import tasks_tables

IMAGES = Path("docs/images")
LEGIBLE = 8  # methods in one figure of curves
MADE = "<!-- made by `python -m tools.results` from results/: change nothing here by hand -->\n"
INTRODUCTION = """
# Results

Our own figures, made from the runs in `results/` by one command, `python -m tools.results`. Each run is one JSON file
there: scores after each step, complete settings, seed, versions, hardware, times (its commit is null where the source
had been copied to a machine without git). mIoU in %, mean ± sample deviation
over seeds. *Old*: the classes of step 0; *new*: all classes added later. The background, b, counts as a class and
with the old ones, except where a column says "without b". *All / offline*: `all` as a share of what the same encoder
reaches when it is trained on all classes at once, which is the same training for every task. Minutes: training of all
steps, without tests. Images a second: from end to end, data and all, median over steps. What of the paper's claims
these figures bear out: [claims](claims.md). Other readings of its two losses: [contrast](contrast.md). How to get the
pictures and the weights that the commands name, and how close a repeated row comes: [repeat](repeat.md).
"""
TASKS_NOTE = (
    "Mean ± deviation where there are several seeds, else one seed. Offline training knows no tasks: one figure for"
    " all of them."
)
CURVES: dict[str, tuple[str, Callable[[Experiment], Figure]]] = {
    "steps": ("mIoU step by step", miou_over_steps),
    "ablation": ("points of mIoU above MiB after the last step", difference_figure),
}
KEPT = {  # figures that need models: what they show, and what draws them
    "predictions": "What each method makes of a test picture after each step "
    "(`tiss figure predictions RUN... --pictures 4`)",
    "features": "The encoder's feature maps of a test picture after each step, three principal components as colours: "
    "a transformer and a CNN (`tiss figure features RUN RUN --pictures 2`)",
    "confusion": "After the last step: of the pixels of the classes of a step, how many % were taken for those of "
    "which step; false alarms stand in the row of the background (`tiss figure confusion RUN...`)",
}
Figures = dict[Path, Callable[[], Figure]]  # drawn only where they are written


def results_page(root: Path) -> tuple[str, Figures]:
    """The text of docs/results.md, and the figures it shows by their path from the root."""
    figures: Figures = {}
    found = blocks(root / "results")
    parts = [MADE + INTRODUCTION]
    for table in tasks_tables(found):
        parts += ["## All tasks at a glance", TASKS_NOTE, to_markdown(table)]
    for block in found:
        parts += block_section(block, root, figures)
    parts += repeat_section(repeated(root / "results"), notes_on_repeats(root / "results"))
    parts += paper_section(compared(found))
    for measured in similarities(root / "results"):
        sizes = [block.source for block in found if block.experiment.data == measured.data]
        parts += similarity_section(measured, sizes[0] if sizes else "size not noted", figures)
    parts += bench_section(benchmarks(root / "results"), figures)
    return "\n".join(part.strip() + "\n" for part in parts if part.strip()), figures


def block_section(block: Block, root: Path, figures: Figures) -> list[str]:
    """One architecture on one task."""
    experiment = block.experiment
    parts = [f"## {block.heading}", f"Pictures: {block.source}. {machine_line(block)}"]
    parts += [block.note] if block.note else []
    usual, *others = recipe_lines(experiment.series) or [""]
    parts += [f"Settings: {usual}." + "".join(f" {line}." for line in others)] if usual else []
    parts += [to_markdown(main_table(block)), commands(block)]
    if experiment.holdout:
        parts.append("Reading by reading beside MiB, as a figure: [contrast](contrast.md).")
    elif len(experiment.groups) > 2 and not block.apart:  # of two points the table says all
        for kind, chosen in curves_of(experiment).items():
            what, draw = CURVES[kind]
            text = f"{what}, {block.source}"
            parts.append(picture(f"{block.name}-{kind}", text, partial(draw, chosen), figures))
        if block.is_transformer and experiment.setup == "overlapped":
            text = f"Points that each class lost since its best step, {block.source}"
            lost = partial(_drawn, forgetting_map, experiment)
            parts.append(picture(f"{block.name}-forgetting", text, lost, figures))
    parts += kept_pictures(block, root)
    source = f" ({block.source})"
    parts += [folded("Class by class" + source, to_markdown(class_table(experiment)))]
    parts += [folded("Step by step" + source, to_markdown(step_table(experiment)))]
    return parts


def curves_of(experiment: Experiment) -> dict[str, Experiment]:
    """What stands in one figure of curves: with many methods, the ablation gets one of its own."""
    if len(experiment.series) <= LEGIBLE:
        return {"steps": experiment}
    added = tuple(one for one in experiment.series if one.method in ABLATION and one.method != "mib")
    if not added:
        return {"steps": experiment}
    rest = tuple(one for one in experiment.series if one not in added)
    compared = tuple(
        one for one in experiment.series if one in added or one.method in ("mib", "tiss", "offline")
    )
    return {"steps": replace(experiment, series=rest), "ablation": replace(experiment, series=compared)}


def figure_columns(block: Block) -> list[tuple[str, str, str]]:
    """Head, part and average of each mean that is shown; new classes are the same with and without the background."""
    averages = averages_of(block.experiment)
    columns = [(part, part, averages[0]) for part in ("old", "new", "all")]
    return columns + [
        (f"{part}, without b", part, average) for average in averages[1:] for part in ("old", "all")
    ]


def main_table(block: Block) -> Table:
    """Method × old, new, all, with and without the background; share of offline; time."""
    means = figure_columns(block)
    columns = [Column(head) for head, _, _ in means]
    columns += [Column(name) for name in ("all / offline", "minutes", "images/s")]
    rows = []
    for series in block.experiment.series:
        cells: list[Cell] = [block.last(series, part, average) for _, part, average in means]
        minutes, speed = minutes_of(series), speed_of(series)
        cells += [share_of_offline(block, series)]
        cells += [None if minutes is None else f"{minutes:.1f}", None if speed is None else f"{speed:.0f}"]
        ranked = "all" if series.first.finished and not series.at_once else None
        rows.append(Row((series.label, str(len(series.results))), tuple(cells), ranked))
    title = f"mIoU in % after the last step; pictures of {block.source}"
    return Table(title, ("method", "seeds"), tuple(columns), tuple(rows)).without_empty_columns()


def share_of_offline(block: Block, series: Series) -> str | None:
    """`all` over offline's, to three digits."""
    joint = block.offline or block.joint
    if joint is None or series.at_once:
        return None
    own, bound = block.last(series, "all"), block.last(joint, "all")
    return None if own is None or bound is None else f"{own.mean / bound.mean:.3f}"


def commands(block: Block) -> str:
    """The command that repeats each row."""
    lines = ["| method | repeated by |", "|---|---|"]
    for series in block.experiment.series:
        command = command_of_record(series.first.values)
        others = [str(one.values["seed"]) for one in series.results[1:]]
        more = f" (and `--seed` {', '.join(others)})" if others else ""
        text = f"`{command.replace('|', chr(92) + '|')}`{more}" if command else "settings were not kept"
        lines.append(f"| {series.label} | {text} |")
    together = f"\n\nAll of them: `{block.command}`." if block.command else ""
    return "\n".join(lines) + together


def machine_line(block: Block) -> str:
    """Hardware and versions, as far as the runs of a table share them."""
    environments = [
        one.values.get("environment") or {} for series in block.experiment.series for one in series.results
    ]
    devices = sorted({str(one["device"]) for one in environments if one.get("device")})
    versions = sorted({f"tiss {one['tiss']}" for one in environments if one.get("tiss")})
    torch = sorted({f"torch {one['packages']['torch']}" for one in environments if one.get("packages")})
    precision = sorted({str(one["precision"]) for one in environments if one.get("precision")})
    known = [", ".join(part) for part in (devices, precision, torch, versions) if part]
    return f"Machine: {'; '.join(known)}." if known else ""


def picture(name: str, text: str, draw: Callable[[], Figure], figures: Figures) -> str:
    """A link to a figure that is written with the page."""
    path = IMAGES / f"results-{name}.png"
    figures[path] = draw
    return captioned(text, path)


def captioned(text: str, path: Path) -> str:
    """A figure with its caption in sight: a page's readers do not see what stands for a missing picture."""
    return f"![{text}](images/{path.name})\n\n*{text[0].upper()}{text[1:]}.*"


def _drawn(draw: Callable[[Experiment], Figure | None], experiment: Experiment) -> Figure:
    found = draw(experiment)
    assert found is not None
    return found


def kept_pictures(block: Block, root: Path) -> list[str]:
    """Figures that need models, drawn where the runs were done and kept: predictions, features, confusion."""
    one = block.experiment
    found = []
    for kind in KEPT:
        for path in sorted((root / IMAGES).glob(f"{one.data}-{one.task}-{one.setup}-{kind}*.png")):
            if block.is_transformer and not one.holdout and not block.apart:
                found.append(captioned(f"{KEPT[kind]}; seed 0, {block.source}", path))
    return found


def folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text.strip()}\n\n</details>"


def repeat_section(pairs: Sequence[tuple[Result, Result]], notes: Sequence[str] = ()) -> list[str]:
    """Runs done twice: how far the same command and seed agree."""
    if not pairs:
        return []
    lines = ["| run | old | new | all | largest difference of a class |", "|---|---:|---:|---:|---:|"]
    worst = 0.0
    for one, again in pairs:
        ends = [result.steps[-1] for result in (one, again)]
        cells = [
            " → ".join(percent(getattr(scores, part).headline) for scores in ends)
            for part in ("old", "new", "all")
        ]
        gaps = [
            abs(value - other)
            for name, value in ends[0].iou.items()
            if value is not None and (other := ends[1].iou.get(name)) is not None
        ]
        means = [scores.all.headline or 0.0 for scores in ends]
        worst = max(worst, abs(means[0] - means[1]))
        lines.append(f"| `{one.values.get('name')}` | {' | '.join(cells)} | {max(gaps):.2f} |")
    return [
        "## The same run twice",
        f"Same settings, same seed, run again on another day; `all` agrees within {worst:.2f} points. A GPU adds up in"
        " another order each time; `--train.deterministic true` gives the same to the last bit, at 1.4 times the cost.",
        "\n".join(lines),
        *notes,
    ]


def paper_section(found: Sequence[Block]) -> list[str]:
    """The paper's tables with our rows, where they have a place; one way of averaging is never ranked with another."""
    sources = {block.experiment.data: block.source for block in found}
    experiments = [block.experiment for block in found]
    names = fitting_tables(experiments)
    if not names:
        return []
    parts = ["## Beside the paper's figures"]
    size = "; ".join(sorted({sources[one.data] for one in experiments if fitting_tables([one])}))
    parts.append(
        f"Our rows: pictures of {size}, not the original ones. The paper's: original size, crops of 512. The paper's"
        " rows do not share one way of averaging; the notes under each table say which is which."
    )
    for index, name in enumerate(names):
        table = paper_table(name, experiments)
        text = to_markdown(table)
        parts.append(text if index == 0 else folded(table.title, text))
    return parts


def similarity_section(measured: Similarities, source: str, figures: Figures) -> list[str]:
    """The similarity figure, drawn from its numbers."""
    name = f"{measured.data}-{measured.task}-{measured.setup}"
    lines = [
        "| method | step | S+ before | S− before | S+ depth | S− depth | old | new |",
        "|---|" + "---:|" * 7,
    ]
    for method in measured.methods:
        for step in method.steps:
            pairs = [*(step.previous or (None, None)), *step.depth]
            cells = ["–" if value is None else f"{value:.3f}" for value in pairs]
            cells += [percent(step.old), percent(step.new)]
            lines.append("| " + " | ".join([method.label, str(step.step), *cells]) + " |")
    return [
        f"## Similarity of patch tokens, {measured.data} {measured.task} {measured.setup}",
        f"Mean |cos| over {measured.images} test pictures ({source}) without augmentation, one seed a method. "
        "*Before*: the last layer against the last layer of the model before; *depth*: last against first layer. "
        "S+: the same patch, S−: different patches of a picture. `tiss figure similarity RUNS` measures and draws it.",
        picture(
            f"{name}-similarity",
            f"Similarity against mIoU, {source}; a larger point is a later step",
            partial(similarity_figure, measured),
            figures,
        ),
        folded("The same as a table", "\n".join(lines)),
    ]
