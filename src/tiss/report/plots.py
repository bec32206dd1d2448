"""Figures from finished runs: `save_figure` writes them to files, `inline_svg` puts them into a page."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from tiss.files import write_bytes
from tiss.report.colours import MethodStyle, method_styles
from tiss.report.runs import Experiment, Series
from tiss.report.tables import AVERAGES, averages_of, class_figure, figure

INK = "#161616"  # all text and axes; an inline SVG replaces it by the page's own text colour
GRID = "#8f8f8f"
DPI = 200
USUAL_ROWS, ROW = 3, 0.19  # rows of a legend that a figure has room for, and inches for each one more
HANDLE = 3.4  # a legend's lines, in letters: long enough to tell dashes from dots


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
    """Writes a figure; the suffix (.svg, .png, .pdf) decides how. The ground is white, for print."""
    stream = io.BytesIO()
    drawn.savefig(
        stream,
        format=path.suffix[1:],
        facecolor="white",
        dpi=DPI,
        bbox_inches="tight",
        metadata=_undated(path.suffix),
    )
    if path.suffix == ".png":
        pictures = any(
            np.asarray(image.get_array()).ndim == 3 for axis in drawn.axes for image in axis.images
        )
        stream = _made_small(stream, keep_colours=pictures)
    write_bytes(path, stream.getvalue())  # whole or not at all
    return path


def _made_small(large: io.BytesIO, keep_colours: bool) -> io.BytesIO:
    """The same file in fewer bytes; lines and maps with 128 colours of their own choice, which no eye tells apart."""
    with Image.open(large) as picture:
        small = picture.convert("RGB")
    if not keep_colours:
        small = small.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    small.save(stream, "PNG", optimize=True, dpi=(DPI, DPI))
    return stream


def _undated(suffix: str) -> dict[str, None]:
    """No date in the file: the same figures give the same bytes."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})


def inline_svg(drawn: Figure, name: str) -> str:
    """The figure as an <svg> element that takes its text colour from the page; `name` keeps ids apart."""
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        drawn.savefig(stream, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")


def miou_over_steps(
    experiment: Experiment, parts: Sequence[str] = ("old", "new", "all"), average: str | None = None
) -> Figure:
    """mIoU of old, new and all classes step by step, one line a method, ± deviation over seeds."""
    average = average or averages_of(experiment)[0]
    with style():
        drawn = Figure(figsize=(3.1 * len(parts) + 0.6, 3.2), layout="constrained")
        axes = drawn.subplots(1, len(parts), sharey=True, squeeze=False)[0]
        for axis, part in zip(axes, parts, strict=True):
            _draw_lines(axis, experiment, part, average)
            axis.set_title("\n".join(part_titles(experiment, part, average)))
            axis.set_xlabel("step")
        axes[0].set_ylabel("mIoU in %")
        axes[0].set_ylim(bottom=0)
        legend_below(drawn, axes[0])
    return drawn


def part_titles(experiment: Experiment, part: str, average: str) -> list[str]:
    """What a panel shows, in one line or two; the background is named only where it could count."""
    titles = {
        "old": f"old: the {len(experiment.groups[0])} classes of step 0",
        "new": "new: classes added since",
        "all": "all classes seen so far",
    }
    if not experiment.has_background:
        return [titles[part]]
    return [titles[part], "" if part == "new" else AVERAGES[average]]


def legend_below(drawn: Figure, axis: Axes, note: str | None = None) -> None:
    """One legend for all panels, in as many columns as their labels leave room for; `note` stands above it.

    A long one makes the figure higher: it must not take the panels' room.
    """
    handles, labels = axis.get_legend_handles_labels()
    if labels:
        lines = any(isinstance(handle, Line2D) for handle in handles)
        columns = legend_columns(drawn, labels)
        more = max(0, -(-len(labels) // columns) - USUAL_ROWS)
        drawn.set_figheight(drawn.get_figheight() + ROW * more)
        drawn.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=columns,
            handlelength=HANDLE if lines else None,
            title=note,
            title_fontsize=8,
        )


def legend_columns(drawn: Figure, labels: Sequence[str], fontsize: float = 9) -> int:
    """How many columns of a legend fit into the figure's width, shared evenly between the rows it takes."""
    inches = 0.82 + 0.068 * max(map(len, labels), default=0)  # of a handle and of its letters, in 9 points
    room = max(1, int(drawn.get_figwidth() / (inches * fontsize / 9)))
    lines = max(1, -(-len(labels) // room))
    return max(1, -(-len(labels) // lines))


def marked(look: MethodStyle) -> dict[str, Any]:
    """A method's colour and marker, for `plot` and `errorbar`."""
    return {"color": look.colour, "marker": look.marker, "mfc": look.face}


def _draw_lines(axis: Axes, experiment: Experiment, part: str, average: str) -> None:
    last = len(experiment.groups) - 1
    styles = method_styles([series.method for series in experiment.series])
    for series, look in zip(experiment.series, styles, strict=True):
        if series.at_once:
            value = series.value(0, figure(part, average))
            level = np.nan if value is None else value.mean
            label = f"{series.label} (all at once)"
            axis.plot([0, last], [level, level], ls=look.line, color=look.colour, label=label)
            continue
        values = [series.value(step, figure(part, average)) for step in range(series.steps)]
        means = np.array([np.nan if value is None else value.mean for value in values])
        spread = np.array([0 if value is None else value.deviation or 0 for value in values])
        steps = np.arange(len(means))
        axis.plot(steps, means, ls=look.line, label=series.label, **marked(look))
        if spread.any():
            axis.fill_between(steps, means - spread, means + spread, color=look.colour, alpha=0.18, lw=0)
    axis.set_xticks(range(last + 1))
    axis.set_xlim(-0.15, last + 0.15)


def heat_map(
    values: np.ndarray, rows: Sequence[str], columns: Sequence[str], *, low: float, high: float, label: str
) -> Figure:
    """Figures as colours and numbers, rows × columns; cividis, which colour-blind readers see alike."""
    with style():
        drawn = Figure(figsize=(1.3 + 0.46 * len(columns), 1.1 + 0.3 * len(rows)), layout="constrained")
        axis = drawn.subplots()
        draw_map(axis, values, rows, columns, low, high)
        drawn.colorbar(axis.images[0], ax=axis, label=label, fraction=0.04, pad=0.015)
    return drawn


def draw_map(
    axis: Axes,
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    low: float,
    high: float,
    zeros: bool = True,
) -> None:
    axis.imshow(values, cmap="cividis", vmin=low, vmax=high, aspect="auto")
    axis.set_xticks(range(len(columns)), columns, rotation=40, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(len(rows)), rows)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    if values.size > 600:
        return  # numbers would not be legible
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value) and (zeros or round(value)):
            dark = value < (low + high) / 2
            axis.text(
                column,
                row,
                str(round(value)),
                ha="center",
                va="center",
                fontsize=8,
                color="white" if dark else "black",
            )


def _table_of(
    experiment: Experiment, names: Sequence[str], get: Callable[[Series, str], float | None]
) -> np.ndarray:
    rows = [[get(series, name) for name in names] for series in experiment.series]
    return np.array([[np.nan if value is None else value for value in row] for row in rows], float)


def class_map(experiment: Experiment) -> Figure:
    """IoU of every class after the last step, one row a method."""
    names = experiment.classes if experiment.has_background else experiment.classes[1:]

    def get(series: Series, name: str) -> float | None:
        value = series.value(-1, class_figure(name))
        return None if value is None else value.mean

    labels = [series.label for series in experiment.series]
    return heat_map(_table_of(experiment, names, get), labels, names, low=0, high=100, label="IoU in %")


def forgetting_map(experiment: Experiment) -> Figure | None:
    """Points each class lost since its best step, one row a method; None where nothing could be lost."""
    names = [experiment.classes[channel] for group in experiment.groups[:-1] for channel in group]
    kept = [series for series in experiment.series if series.steps > 1]
    if not names or not kept:
        return None

    def get(series: Series, name: str) -> float | None:
        value = series.forgetting(name)
        return None if value is None else value.mean

    values = np.array([[np.nan if (v := get(s, n)) is None else v for n in names] for s in kept], float)
    labels = [series.label for series in kept]
    return heat_map(values, labels, names, low=0, high=100, label="points lost")
