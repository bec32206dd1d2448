"""Differences to MiB: what the curves hide, with bars that say what is decided."""

from __future__ import annotations

import numpy as np
import pytest

from tests.report.fakes import results
from tiss.report.differences import difference_figure, spread_of
from tiss.report.runs import Value, experiments, load_results
from tiss.report.tables import figure


def test_points_are_differences_to_mib_and_bars_twice_the_larger_deviation() -> None:
    methods = ("mib", "mib+l1", "tiss", "offline")
    (experiment,) = experiments(load_results([results(m, seed) for m in methods for seed in (0, 1, 2)]))
    drawn = difference_figure(experiment)
    assert [len(axis.containers) for axis in drawn.axes] == [
        2,
        2,
        2,
    ]  # neither MiB itself nor what is learnt at once
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == ["MiB+L1", "TISS"]
    base, first = experiment.series[:2]
    for axis, part in zip(drawn.axes, ("old", "new", "all"), strict=True):
        own, other = (one.value(-1, figure(part, "with_background")) for one in (first, base))
        assert own is not None and other is not None and own.deviation and other.deviation
        point, _, (bar,) = axis.containers[0]
        assert point.get_xdata()[0] == pytest.approx(own.mean - other.mean)
        (ends,) = bar.get_segments()
        assert np.ptp(ends[:, 0]) / 2 == pytest.approx(2 * max(own.deviation, other.deviation))
    assert drawn.axes[0].get_xlim() == drawn.axes[1].get_xlim()  # one scale: panels are compared


def test_one_seed_has_no_bar_of_its_own() -> None:
    assert spread_of(Value(60.0), Value(57.0, 0.5, 3)) is None
    assert spread_of(Value(60.0), Value(57.0, 0.5, 3), alone=0.7) == pytest.approx(1.4)
    (experiment,) = experiments(load_results([results("mib"), results("tiss")]))
    assert difference_figure(experiment).texts[0].get_text() == "one seed"
