"""The figure of docs/contrast.md: how far each reading is from MiB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiss.reporting.plots import GRID, INK, legend_below, style

if TYPE_CHECKING:
    from tools.results.contrast import Reading

# Okabe and Ito's colours; a little apart, so that equal changes are both seen
WAYS = (("old", "#0072b2", "o", -0.14), ("new", "#d55e00", "D", 0.14))


@dataclass(frozen=True)
class Panel:
    """One set of test pictures: its readings, and MiB's own deviation over seeds on the new classes."""

    title: str
    readings: Sequence[Reading]
    spread: float | None


def contrast_figure(panels: Sequence[Panel], source: str) -> Figure:
    """A panel a set of pictures, a row a reading: its change against MiB on old and new classes, in points.

    A grey band to either side of zero shows how far MiB itself strays on the new classes. The bars are a reading's
    own deviation over seeds.
    """
    with style():
        heights = [len(panel.readings) for panel in panels]
        drawn = Figure(figsize=(7.4, 0.3 * sum(heights) + 0.45 * len(panels) + 1.1), layout="constrained")
        axes = drawn.subplots(
            len(panels), sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )[:, 0]
        for axis, panel in zip(axes, panels, strict=True):
            _draw(axis, panel.readings, panel.spread)
            axis.set_title(panel.title, loc="left")
        axes[-1].set_xlabel(f"points of mIoU above MiB after the last step (pictures of {source})")
        legend_below(drawn, axes[0])
    return drawn


def _draw(axis: Axes, readings: Sequence[Reading], spread: float | None) -> None:
    if spread is not None:
        label = "± 2 deviations of MiB over seeds, new classes"
        axis.axvspan(-2 * spread, 2 * spread, color=GRID, alpha=0.3, lw=0, label=label)
    axis.axvline(0, color=INK, lw=1)
    for part, colour, marker, shift in WAYS:
        known = [(place, one) for place, one in enumerate(readings) if one.change(part) is not None]
        axis.errorbar(
            [one.change(part) or 0.0 for _, one in known],
            [place + shift for place, _ in known],
            xerr=[one.pairs[part][0].deviation or 0.0 for _, one in known],
            fmt=marker,
            color=colour,
            elinewidth=1.2,
            label=f"{part} classes",
        )
    axis.set_yticks(range(len(readings)), [one.label for one in readings])
    axis.set_ylim(len(readings) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
