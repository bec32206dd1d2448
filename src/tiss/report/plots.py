"""Charts of finished runs: curves, maps and differences; `save_figure` writes a file, `inline_svg` fills a page."""

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from tiss.data.checks import ClassCount
from tiss.errors import TissError
from tiss.files import write_bytes
from tiss.report.labels import looks_of
from tiss.report.runs import Experiment, Value
from tiss.report.tables import PARTS, Table, class_table, forgetting_table

INK = "#161616"  # all text and axes; an inline SVG replaces it by the page's own text colour
GRID = "#8f8f8f"
DPI = 200
STYLE = str(Path(__file__).with_name("figures.mplstyle"))
SHARES = "% of the pixels of a row's true classes; false positives are in the row of the background"
BARS = "bars: twice the larger of the two deviations over seeds; where a bar reaches zero, nothing is decided"
FAR = 12  # points of mIoU beyond which a difference needs no figure
LETTER = 0.068  # inches of a letter of 9 points


@contextmanager
def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> Iterator[tuple[Figure, Any]]:
    """A figure of so many inches and its axes (one, or an array of them), in the style of all figures."""
    with matplotlib.rc_context(fname=STYLE):
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn, drawn.subplots(rows, columns, **options)


def save_figure(drawn: Figure, path: Path) -> Path:
    """Writes a figure on white; the suffix (.svg, .png, .pdf) decides the format. Equal figures give equal bytes."""
    stream = io.BytesIO()
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    how: dict[str, Any] = {"facecolor": "white", "dpi": DPI, "bbox_inches": "tight", "metadata": undated}
    with matplotlib.rc_context({"svg.hashsalt": "tiss"}):  # else ids are drawn at random
        drawn.savefig(stream, format=path.suffix[1:], **how)
    if path.suffix == ".png":
        with Image.open(stream) as image:
            small = image.convert("RGB")
        photos = any(np.asarray(one.get_array()).ndim == 3 for axis in drawn.axes for one in axis.images)
        if not photos:  # 128 colours of its own choice: lines and maps look the same in fewer bytes
            small = small.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        stream = io.BytesIO()
        small.save(stream, "PNG", optimize=True, dpi=(DPI, DPI))
    write_bytes(path, stream.getvalue())
    return path


def inline_svg(drawn: Figure | None, name: str) -> Markup:
    """The figure as an <svg> element that takes its text colour from the page; `name` keeps ids apart."""
    if drawn is None:
        return Markup()
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        drawn.savefig(stream, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    return Markup(text[text.index("<svg") :].replace(INK, "currentColor"))


def legend_below(
    drawn: Figure, handles: Sequence[Any], labels: Sequence[str], *, rows: int, **options: Any
) -> None:
    """One legend for all panels, in as many columns as fit into the figure's width.

    Beyond `rows` lines it makes the figure higher: it must not take the panels' room.
    """
    if labels:
        room = max(1, int(drawn.get_figwidth() / (0.82 + LETTER * max(map(len, labels)))))
        lines = -(-len(labels) // room)
        columns = -(-len(labels) // lines)  # shared evenly between the lines
        drawn.set_figheight(drawn.get_figheight() + 0.19 * max(0, -(-len(labels) // columns) - rows))
        drawn.legend(handles, labels, loc="outside lower center", ncols=columns, **options)


def part_title(experiment: Experiment, part: str) -> str:
    """What a panel shows; the background is named where it could count."""
    titles = {
        "old": f"old: the {len(experiment.groups[0])} classes of step 0",
        "new": "new: classes added since",
        "all": "all classes seen so far",
    }
    second = "" if part == "new" else "with background"
    return f"{titles[part]}\n{second}" if experiment.has_background else titles[part]


def miou_over_steps(experiment: Experiment) -> Figure:
    """mIoU of old, new and all classes step by step, one line per method, ± deviation over seeds."""
    last = len(experiment.groups) - 1
    looks = looks_of([series.method for series in experiment.series])
    with canvas(9.9, 3.2, columns=len(PARTS), sharey=True) as (drawn, axes):
        for axis, part in zip(axes, PARTS, strict=True):
            for series, look in zip(experiment.series, looks, strict=True):
                values = [series.mean(part, step) or Value(np.nan) for step in range(series.steps)]
                means = np.array([value.mean for value in values])
                if series.at_once:
                    label = f"{series.label} (all at once)"
                    axis.plot([0, last], [means[0]] * 2, ls=look.line, color=look.colour, label=label)
                    continue
                axis.plot(means, ls=look.line, label=series.label, **look.marked)
                spread = np.array([value.deviation or 0 for value in values])
                if spread.any():
                    band = range(len(means)), means - spread, means + spread
                    axis.fill_between(*band, color=look.colour, alpha=0.18, lw=0)
            axis.set(title=part_title(experiment, part), xlabel="step", xlim=(-0.15, last + 0.15))
            axis.set_xticks(range(last + 1))
        axes[0].set_ylabel("mIoU in %")
        top = max((axis.dataLim.y1 for axis in axes if np.isfinite(axis.dataLim.y1)), default=100)
        axes[0].set_ylim(0, 1.05 * top or 1)
        # handles long enough to tell dashes from dots
        legend_below(drawn, *axes[0].get_legend_handles_labels(), rows=3, handlelength=3.4)
    return drawn


def difference_figure(experiment: Experiment) -> Figure | None:
    """A panel each for old, new and all classes, a row per series: points of mIoU above MiB after the last step.

    It shows small differences that curves from 0 to 80 hide. The base is the first series of MiB; offline training and
    methods far away are left out. None where there is no base or nothing beside it.
    """
    base = next((series for series in experiment.series if series.method == "mib"), None)
    bottom = None if base is None else base.mean("all")
    rows, far = [], []
    for series, look in zip(
        experiment.series, looks_of([one.method for one in experiment.series]), strict=True
    ):
        own = series.mean("all")
        if series is base or series.at_once or own is None or bottom is None:
            continue
        if abs(own.mean - bottom.mean) > FAR:
            far.append(series.label)
        else:
            rows.append((series, look))
    if base is None or not rows:
        return None
    note = [BARS if any(len(one.results) > 1 for one, _ in rows) else "one seed"]
    note += [f"more than {FAR} points away: {', '.join(far)}"] if far else []
    size = 9.6, 0.27 * len(rows) + 1.35
    with canvas(*size, columns=len(PARTS), sharex=True, sharey=True) as (drawn, axes):
        for axis, part in zip(axes, PARTS, strict=True):
            for place, (series, look) in enumerate(rows):
                own, other = series.mean(part), base.mean(part)
                if own is not None and other is not None:
                    change, bar = own.mean - other.mean, twice_deviation(own, other)
                    axis.errorbar(change, place, xerr=bar, elinewidth=1.4, capsize=2.5, **look.marked)
            axis.axvline(0, color=INK, lw=1)
            axis.set_title(part_title(experiment, part))
            axis.set_yticks(range(len(rows)), [series.label for series, _ in rows])
            axis.set_ylim(len(rows) - 0.5, -0.5)
            axis.tick_params(axis="y", length=0)
            axis.margins(x=0.08)
        axes[1].set_xlabel(f"points of mIoU above {base.label} after the last step")
        drawn.supxlabel("\n".join(note), fontsize=8)
    return drawn


def twice_deviation(one: Value, other: Value) -> float | None:
    """Twice the larger of two deviations over seeds: a difference within it may be due to the seeds.

    >>> twice_deviation(Value(60.0, 1.0, 3), Value(57.0, 0.5, 3)), twice_deviation(Value(60.0), Value(57.0, 0.5, 3))
    (2.0, None)
    """
    known = [value.deviation for value in (one, other) if value.deviation is not None]
    return 2 * max(known) if len(known) == 2 else None


def class_map(experiment: Experiment) -> Figure:
    """IoU of every class after the last step, one row per method."""
    return _table_map(class_table(experiment), "IoU in %")


def forgetting_map(experiment: Experiment) -> Figure | None:
    """Points each class lost since its best step, one row per method; None where nothing could be lost."""
    table = forgetting_table(experiment)
    return None if table is None else _table_map(table, "points lost")


def _table_map(table: Table, label: str) -> Figure:
    values = [[cell.mean if isinstance(cell, Value) else np.nan for cell in row.cells] for row in table.rows]
    names = [column.name for column in table.columns]
    with canvas(1.3 + 0.46 * len(names), 1.1 + 0.3 * len(values)) as (drawn, axis):
        _draw_map(axis, np.array(values), [row.labels[0] for row in table.rows], names)
        drawn.colorbar(axis.images[0], ax=axis, label=label, fraction=0.04, pad=0.015)
    return drawn


def _draw_map(
    axis: Axes, values: np.ndarray, rows: Sequence[str], columns: Sequence[str], zeros: bool = True
) -> None:
    """Values from 0 to 100 as numbers on cividis, which colour-blind readers see alike."""
    axis.imshow(values, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    axis.set_xticks(range(len(columns)), columns, rotation=40, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(len(rows)), rows)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    if values.size > 600:
        return  # numbers would not be legible
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value) and (zeros or round(value)):
            colour = "white" if value < 50 else "black"
            axis.text(column, row, str(round(value)), ha="center", va="center", fontsize=8, color=colour)


def group_confusion(matrix: np.ndarray, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """Where the pixels of background, step 0, step 1, … went: shares in % of the true group, rows true.

    The diagonal of a group counts its pixels that got a class of the same group, right or wrong.
    """
    parts = [[0], *([channel for channel in group if channel < len(matrix)] for group in groups)]
    parts = [part for part in parts if part]
    counts = np.array([[matrix[np.ix_(true, guess)].sum() for guess in parts] for true in parts], float)
    total = counts.sum(1, keepdims=True)
    return np.divide(100 * counts, total, out=np.full_like(counts, np.nan), where=total > 0)


def confusion_maps(
    matrices: Sequence[tuple[str, np.ndarray]], groups: Sequence[Sequence[int]]
) -> Figure | None:
    """Confusion between background, old and new classes after the last step, one map per method."""
    if not matrices:
        return None
    names = ["background", *(f"step {index}" for index in range(len(groups)))]
    size = 0.4 * len(names) + 0.2
    columns = min(4, len(matrices))
    lines = -(-len(matrices) // columns)
    inches = size * columns + 1.4, (size + 0.3) * lines + 1.2
    with canvas(*inches, lines, columns, squeeze=False) as (drawn, axes):
        for axis in axes.flat[len(matrices) :]:
            axis.set_visible(False)
        for place, (axis, (label, matrix)) in enumerate(zip(axes.flat, matrices, strict=False)):
            shares = group_confusion(matrix, groups)
            _draw_map(axis, shares, names[: len(shares)], names[: len(shares)], zeros=False)
            title = textwrap.fill(label, max(12, int(size / 0.085)))
            axis.set_title(title, fontsize=9 if len(label) < 30 else 7)
            left, bottom = place % columns == 0, place + columns >= len(matrices)
            axis.tick_params(labelleft=left, labelbottom=bottom)
            axis.set_ylabel("true" if left else "")
            axis.set_xlabel("predicted" if bottom else "")
        drawn.supxlabel(textwrap.fill(SHARES, int(drawn.get_figwidth() / 0.062)), fontsize=8)
    return drawn


def plot_counts(
    counts: Sequence[ClassCount],
    groups: Sequence[Sequence[int]],
    step_images: Mapping[str, Sequence[int]],
    title: str,
    path: Path,
) -> None:
    """Bars of each class's share of pixels, coloured by the step that adds it, and of each step's images.

    `groups` are the label values of each step; `step_images` the training images of each step by setup.
    """
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise TissError(f"{path}: the name must end in .png, .svg or .pdf", setting="plot")
    rows = {row.label: row for row in counts}
    order = [(step, rows[value]) for step, group in enumerate(groups) for value in group]
    total = max(1, sum(row.pixels["train"] for row in counts))
    shares = [100 * row.pixels["train"] / total for _, row in order]
    width = max(8.0, 0.28 * len(order) + 4)
    with canvas(width, 4.5, 1, 2, width_ratios=(3, 1)) as (drawn, (left, right)):
        drawn.suptitle(title)
        left.bar(range(len(order)), shares, color=[f"C{step % 10}" for step, _ in order])
        names = [row.name for _, row in order]
        left.set_xticks(range(len(order)), names, rotation=90, fontsize=8 if len(order) < 60 else 5)
        if max(shares, default=0) > 10 * min(shares, default=0):  # else lengths of bars say what they mean
            left.set_yscale("log")
            left.yaxis.set_major_formatter("{x:g}")
            left.yaxis.set_minor_formatter("{x:g}")
        left.set(ylabel="% of training pixels", xlabel="classes, one colour per step")
        width = 0.8 / max(1, len(step_images))
        for number, (setup, images) in enumerate(step_images.items()):
            places = [step + (number - (len(step_images) - 1) / 2) * width for step in range(len(images))]
            right.bar(places, images, width, label=setup)
        right.set(xlabel="step", ylabel="training images", xticks=range(len(groups)))
        right.legend()
        save_figure(drawn, path)
