"""The figure of docs/contrast.md draws the page's own rule."""

from __future__ import annotations

import pytest
from tools.results.contrast import ABOVE, BELOW, Reading
from tools.results.contrast_figure import WAYS, Panel, contrast_figure

from tests.report.fakes import results
from tiss.report.runs import Series, Value, experiments, load_results


def reading(old: float, new: float, deviation: float | None) -> Reading:
    (experiment,) = experiments(load_results([results("mib+cd")]))
    (series,) = experiment.series
    count = 1 if deviation is None else 3
    pairs = {
        part: (Value(value, deviation, count), Value(50.0, 0.4, 3))
        for part, value in (("old", old), ("new", new))
    }
    return Reading(Series(f"{old} {new} {deviation}", series.results), count, pairs)


@pytest.mark.parametrize("alone", [{}, {"old": 0.4, "new": 1.5}])
def test_a_bar_is_clear_of_zero_where_the_rule_decides(alone: dict[str, float | None]) -> None:
    values = [(50.7, 51.0, 0.2), (49.1, 51.0, 0.6), (47.0, 58.0, 1.0), (51.0, 52.0, None), (48.0, 45.0, None)]
    readings = [reading(*value) for value in values]
    axis = contrast_figure([Panel("test set", readings, alone)], "256 px").axes[0]
    assert len(axis.patches) == 0  # no band that would hold for one kind of class only
    for (part, *_), container in zip(WAYS, axis.containers, strict=True):
        for one, bar in zip(readings, container[2][0].get_segments(), strict=True):
            if one.seeds > 1 or alone:
                clear = bar[:, 0].min() > 0 or bar[:, 0].max() < 0
                assert clear == (one.verdict(part, alone.get(part)) in (ABOVE, BELOW)), (one.label, part)
            else:
                assert bar[0, 0] == bar[1, 0]  # one seed, and nothing that could serve instead
