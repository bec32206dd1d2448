"""Charts of finished runs: curves, maps and differences; `save_figure` writes a file, `inline_svg` fills a page."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from tiss.files import write_bytes
from tiss.report.colours import MethodStyle, method_styles
from tiss.report.runs import Experiment, Series, Value
from tiss.report.tables import AVERAGES, averages_of, mean_of

INK = "#161616"  # all text and axes; an inline SVG replaces it by the page's own text colour
GRID = "#8f8f8f"
DPI = 200
PARTS = ("old", "new", "all")
SHARES = "% of the pixels of a row's true classes; false positives are in the row of the background"
BARS = "bars: twice the larger of the two deviations over seeds; where a bar reaches zero, nothing is decided"
FAR = 12  # points of mIoU beyond which a difference needs no figure
LETTER = 0.068  # inches of a letter of 9 points


def style() -> AbstractContextManager[None]:
    """Settings for one figure: plain axes, text kept as text, transparent ground."""
    return matplotlib.rc_context(
        {
            "font.size": 9,
            "font.family": "sans-serif",
            "svg.fonttype": "none",
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": INK,
            "axes.titlesize": 10,
            "axes.titleweight": "bold",
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": GRID,
            "grid.alpha": 0.25,
            "axes.facecolor": "none",
            "figure.facecolor": "none",
            "legend.frameon": False,
            "lines.linewidth": 1.8,
            "lines.markersize": 5,
        }
    )


def save_figure(drawn: Figure, path: Path) -> Path:
    """Writes a figure on white; the suffix (.svg, .png, .pdf) decides the format. Equal figures give equal bytes."""
    stream = io.BytesIO()
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    drawn.savefig(
        stream, format=path.suffix[1:], facecolor="white", dpi=DPI, bbox_inches="tight", metadata=undated
    )
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


def inline_svg(drawn: Figure, name: str) -> Markup:
    """The figure as an <svg> element that takes its text colour from the page; `name` keeps ids apart."""
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        drawn.savefig(stream, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    return Markup(text[text.index("<svg") :].replace(INK, "currentColor"))


def legend_below(drawn: Figure, axis: Axes, note: str | None = None) -> None:
    """One legend for all panels, in as many columns as fit; `note` is its title.

    A long one makes the figure higher: it must not take the panels' room.
    """
    handles, labels = axis.get_legend_handles_labels()
    if labels:
        columns = legend_columns(drawn, labels)
        drawn.set_figheight(drawn.get_figheight() + 0.19 * max(0, -(-len(labels) // columns) - 3))
        drawn.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=columns,
            handlelength=3.4,  # long enough to tell dashes from dots
            title=note,
            title_fontsize=8,
        )


def legend_columns(drawn: Figure, labels: Sequence[str]) -> int:
    """How many columns of a legend fit into the figure's width, shared evenly between its rows."""
    room = max(1, int(drawn.get_figwidth() / (0.82 + LETTER * max(map(len, labels), default=0))))
    rows = max(1, -(-len(labels) // room))
    return max(1, -(-len(labels) // rows))


def marked(look: MethodStyle) -> dict[str, Any]:
    """A method's colour and marker, for `plot` and `errorbar`."""
    return {"color": look.colour, "marker": look.marker, "mfc": look.face}


def part_title(experiment: Experiment, part: str, average: str) -> str:
    """What a panel shows; the background is named where it could count."""
    titles = {
        "old": f"old: the {len(experiment.groups[0])} classes of step 0",
        "new": "new: classes added since",
        "all": "all classes seen so far",
    }
    second = AVERAGES[average] if experiment.has_background and part != "new" else ""
    return f"{titles[part]}\n{second}" if experiment.has_background else titles[part]


def miou_over_steps(experiment: Experiment) -> Figure:
    """mIoU of old, new and all classes step by step, one line per method, ± deviation over seeds."""
    average = averages_of(experiment)[0]
    with style():
        drawn = Figure(figsize=(9.9, 3.2), layout="constrained")
        axes = drawn.subplots(1, len(PARTS), sharey=True)
        for axis, part in zip(axes, PARTS, strict=True):
            _draw_lines(axis, experiment, part, average)
            axis.set_title(part_title(experiment, part, average))
            axis.set_xlabel("step")
        axes[0].set_ylabel("mIoU in %")
        top = max((axis.dataLim.y1 for axis in axes if np.isfinite(axis.dataLim.y1)), default=100)
        axes[0].set_ylim(0, 1.05 * top or 1)
        legend_below(drawn, axes[0])
    return drawn


def _draw_lines(axis: Axes, experiment: Experiment, part: str, average: str) -> None:
    last = len(experiment.groups) - 1
    looks = method_styles([series.method for series in experiment.series])
    for series, look in zip(experiment.series, looks, strict=True):
        values = [series.value(step, mean_of(part, average)) for step in range(series.steps)]
        means = np.array([np.nan if value is None else value.mean for value in values])
        if series.at_once:
            label = f"{series.label} (all at once)"
            axis.plot([0, last], [means[0]] * 2, ls=look.line, color=look.colour, label=label)
            continue
        spread = np.array([0 if value is None else value.deviation or 0 for value in values])
        steps = np.arange(len(means))
        axis.plot(steps, means, ls=look.line, label=series.label, **marked(look))
        if spread.any():
            axis.fill_between(steps, means - spread, means + spread, color=look.colour, alpha=0.18, lw=0)
    axis.set_xticks(range(last + 1))
    axis.set_xlim(-0.15, last + 0.15)


def difference_figure(experiment: Experiment, base: str = "mib") -> Figure | None:
    """A panel each for old, new and all classes, a row per series: points of mIoU above `base` after the last step.

    It shows small differences that curves from 0 to 80 hide. The base is the first series of that method; offline
    training and methods far away are left out. None where there is no base or nothing beside it.
    """
    bottom = next((series for series in experiment.series if series.method == base), None)
    looks = method_styles([series.method for series in experiment.series])
    if bottom is None:
        return None
    average = averages_of(experiment)[0]
    rows, far = [], []
    for series, look in zip(experiment.series, looks, strict=True):
        own, other = (one.value(-1, mean_of("all", average)) for one in (series, bottom))
        if series is bottom or series.at_once or own is None or other is None:
            continue
        if abs(own.mean - other.mean) > FAR:
            far.append(series.label)
        else:
            rows.append((series, look))
    if not rows:
        return None
    note = [BARS if any(len(one.results) > 1 for one, _ in rows) else "one seed"]
    note += [f"more than {FAR} points away: {', '.join(far)}"] if far else []
    with style():
        drawn = Figure(figsize=(9.6, 0.27 * len(rows) + 1.35), layout="constrained")
        axes = drawn.subplots(1, len(PARTS), sharex=True, sharey=True)
        for axis, part in zip(axes, PARTS, strict=True):
            for place, (series, look) in enumerate(rows):
                own, other = (one.value(-1, mean_of(part, average)) for one in (series, bottom))
                if own is not None and other is not None:
                    change, bar = own.mean - other.mean, twice_deviation(own, other)
                    axis.errorbar(change, place, xerr=bar, elinewidth=1.4, capsize=2.5, **marked(look))
            axis.axvline(0, color=INK, lw=1)
            axis.set_title(part_title(experiment, part, average))
            axis.set_yticks(range(len(rows)), [series.label for series, _ in rows])
            axis.set_ylim(len(rows) - 0.5, -0.5)
            axis.tick_params(axis="y", length=0)
            axis.margins(x=0.08)
        axes[1].set_xlabel(f"points of mIoU above {bottom.label} after the last step")
        drawn.supxlabel("\n".join(note), fontsize=8)
    return drawn


def twice_deviation(one: Value, other: Value) -> float | None:
    """Twice the larger of two deviations over seeds: a difference within it may be due to the seeds.

    >>> twice_deviation(Value(60.0, 1.0, 3), Value(57.0, 0.5, 3)), twice_deviation(Value(60.0), Value(57.0, 0.5, 3))
    (2.0, None)
    """
    return (
        None if one.deviation is None or other.deviation is None else 2 * max(one.deviation, other.deviation)
    )


def class_map(experiment: Experiment) -> Figure:
    """IoU of every class after the last step, one row per method."""
    names = experiment.classes[0 if experiment.has_background else 1 :]

    def iou(series: Series, name: str) -> Value | None:
        return series.value(-1, lambda scores: scores.iou.get(name))

    return _method_map(experiment.series, names, iou, "IoU in %")


def forgetting_map(experiment: Experiment) -> Figure | None:
    """Points each class lost since its best step, one row per method; None where nothing could be lost."""
    names = [experiment.classes[channel] for group in experiment.groups[:-1] for channel in group]
    several = [series for series in experiment.series if series.steps > 1]
    return _method_map(several, names, Series.forgetting, "points lost") if names and several else None


def _method_map(
    several: Sequence[Series], names: Sequence[str], get: Callable[[Series, str], Value | None], label: str
) -> Figure:
    rows = [
        [np.nan if (value := get(one, name)) is None else value.mean for name in names] for one in several
    ]
    with style():
        drawn = Figure(figsize=(1.3 + 0.46 * len(names), 1.1 + 0.3 * len(several)), layout="constrained")
        axis = drawn.subplots()
        _draw_map(axis, np.array(rows, float), [series.label for series in several], names)
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


def confusion_maps(matrices: Sequence[tuple[str, np.ndarray]], groups: Sequence[Sequence[int]]) -> Figure:
    """Confusion between background, old and new classes after the last step, one map per method."""
    names = ["background", *(f"step {index}" for index in range(len(groups)))]
    size = 0.4 * len(names) + 0.2
    columns = min(4, len(matrices))
    lines = -(-len(matrices) // columns)
    with style():
        drawn = Figure(figsize=(size * columns + 1.4, (size + 0.3) * lines + 1.2), layout="constrained")
        axes = drawn.subplots(lines, columns, squeeze=False)
        for place, axis in enumerate(axes.flat):
            if place >= len(matrices):
                axis.set_visible(False)
                continue
            label, matrix = matrices[place]
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
