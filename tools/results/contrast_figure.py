"""The figure of docs/contrast.md: how far each reading is from MiB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiss.report.differences import RULE, spread_of
from tiss.report.plots import INK, legend_below, style

if TYPE_CHECKING:
    from tools.results.contrast import Reading

# Okabe and Ito's colours; a little apart, so that equal changes are both seen
WAYS = (("old", "#0072b2", "o", -0.14), ("new", "#d55e00", "D", 0.14))


@dataclass(frozen=True)
class Panel:
    """One set of test pictures: its readings, and the deviation that serves, by part, where a reading has one seed."""

    title: str
    readings: Sequence[Reading]
    alone: Mapping[str, float | None]


def contrast_figure(panels: Sequence[Panel], source: str) -> Figure:
    """A panel a set of pictures, a row a reading: its change against MiB on old and new classes, in points.

    The bars are what the page's rule asks for: twice the larger of the two deviations over seeds, the reading's and
    MiB's own. A reading is above or below MiB where its bar does not reach zero.
    """
    with style():
        heights = [len(panel.readings) for panel in panels]
        drawn = Figure(figsize=(7.4, 0.3 * sum(heights) + 0.45 * len(panels) + 1.3), layout="constrained")
        axes = drawn.subplots(
            len(panels), sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )[:, 0]
        for axis, panel in zip(axes, panels, strict=True):
            _draw(axis, panel)
            axis.set_title(panel.title, loc="left")
        axes[-1].set_xlabel(f"points of mIoU above MiB after the last step\n(pictures of {source})")
        legend_below(drawn, axes[0], RULE)
    return drawn


def _draw(axis: Axes, panel: Panel) -> None:
    axis.axvline(0, color=INK, lw=1)
    for part, colour, marker, shift in WAYS:
        known = [(place, one) for place, one in enumerate(panel.readings) if one.change(part) is not None]
        axis.errorbar(
            [one.change(part) or 0.0 for _, one in known],
            [place + shift for place, _ in known],
            xerr=[spread_of(*one.pairs[part], panel.alone.get(part)) or 0.0 for _, one in known],
            fmt=marker,
            color=colour,
            elinewidth=1.2,
            capsize=2,
            label=f"{part} classes",
        )
    axis.set_yticks(range(len(panel.readings)), [one.label for one in panel.readings])
    axis.set_ylim(len(panel.readings) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
