"""How far methods are from one of them after the last step: small differences that curves from 0 to 80 hide."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiss.report.colours import method_styles
from tiss.report.plots import INK, marked, part_titles, style
from tiss.report.runs import Experiment, Series, Value
from tiss.report.tables import averages_of, figure

RULE = "bars: twice the larger of the two deviations over seeds; a bar that reaches zero decides nothing"


def spread_of(one: Value, other: Value, alone: float | None = None) -> float | None:
    """Twice the larger of two deviations over seeds: a difference within it may be chance.

    Where one of the two has a single seed, it is twice `alone`, if that is known.

    >>> spread_of(Value(60.0, 1.0, 3), Value(57.0, 0.5, 3)), spread_of(Value(60.0), Value(57.0, 0.5, 3))
    (2.0, None)
    """
    if one.deviation is None or other.deviation is None:
        return None if alone is None else 2 * alone
    return 2 * max(one.deviation, other.deviation)


def difference_figure(experiment: Experiment, base: str = "mib") -> Figure:
    """A panel each for old, new and all classes, a row a method: points of mIoU above `base` after the last step.

    The base is the first series of that method; what learns everything at once is left out.
    """
    bottom = next(series for series in experiment.series if series.method == base)
    styles = dict(
        zip(
            [series.label for series in experiment.series],
            method_styles([series.method for series in experiment.series]),
            strict=True,
        )
    )
    shown = [series for series in experiment.series if series is not bottom and not series.at_once]
    average = averages_of(experiment)[0]
    with style():
        drawn = Figure(figsize=(9.0, 0.34 * len(shown) + 1.35), layout="constrained")
        axes = drawn.subplots(1, 3, sharex=True, sharey=True)
        for axis, part in zip(axes, ("old", "new", "all"), strict=True):
            pairs = [tuple(one.value(-1, figure(part, average)) for one in (s, bottom)) for s in shown]
            for row, (series, (own, other)) in enumerate(zip(shown, pairs, strict=True)):
                if own is not None and other is not None:
                    bar = spread_of(own, other)
                    axis.errorbar(
                        own.mean - other.mean,
                        row,
                        xerr=bar,
                        elinewidth=1.4,
                        capsize=2.5,
                        ms=6,
                        **marked(styles[series.label]),
                    )
            axis.set_title("\n".join(part_titles(experiment, part, average)))
            _finish(axis, shown)
        axes[1].set_xlabel(f"points of mIoU above {bottom.label} after the last step")
        drawn.supxlabel(RULE if any(len(one.results) > 1 for one in shown) else "one seed", fontsize=8)
    return drawn


def _finish(axis: Axes, shown: Sequence[Series]) -> None:
    axis.axvline(0, color=INK, lw=1)
    axis.set_yticks(range(len(shown)), [series.label for series in shown])
    axis.set_ylim(len(shown) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.margins(x=0.08)
