"""Figures: drawn from the figures of the runs, fit for print and for a page of any colour."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.reporting.fakes import GROUPS, results
from tiss.reporting.colours import STYLES, method_styles
from tiss.reporting.plots import (
    class_map,
    confusion_maps,
    forgetting_map,
    group_confusion,
    inline_svg,
    miou_over_steps,
    save_figure,
)
from tiss.reporting.runs import Experiment, experiments, load_results


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    runs = [results(method, seed) for method in ("ft", "mib", "offline") for seed in (0, 1)]
    return experiments(load_results(runs))[0]


def test_curves_show_the_scores(experiment: Experiment) -> None:
    drawn = miou_over_steps(experiment)
    old, new, everything = drawn.axes
    lines = {line.get_label(): line for line in old.get_lines()}
    expected = [
        np.mean([result.steps[step].old.with_background for result in experiment.series[0].results])
        for step in range(3)
    ]
    np.testing.assert_allclose(lines["FT"].get_ydata(), expected)
    assert lines["FT"].get_color() == STYLES["ft"][0]
    assert "offline (all at once)" in lines
    assert np.isnan(new.get_lines()[0].get_ydata()[0])  # nothing is new at step 0
    assert len(everything.collections) == 2  # deviations of the two methods that have steps


def test_maps_show_every_class(experiment: Experiment) -> None:
    assert len(class_map(experiment).axes[0].texts) == 3 * 9
    lost = forgetting_map(experiment)
    assert lost is not None
    assert len(lost.axes[0].texts) == 2 * 6  # offline forgets nothing; the last step's classes cannot be lost
    once = experiments(load_results([results("offline")]))[0]
    assert forgetting_map(once) is None


def test_group_confusion_gives_shares_of_the_true_group() -> None:
    matrix = np.array([[8, 2, 0], [1, 2, 1], [0, 0, 0]])
    shares = group_confusion(matrix, ((1,), (2,)))
    np.testing.assert_allclose(shares[:2], [[80, 20, 0], [25, 50, 25]])
    assert np.isnan(shares[2]).all()
    assert group_confusion(matrix[:2, :2], ((1,), (2,))).shape == (2, 2)


def test_confusion_maps_have_one_map_a_method() -> None:
    drawn = confusion_maps([("a", np.eye(9)), ("b", np.eye(9))], GROUPS)
    assert [axis.get_title() for axis in drawn.axes if axis.get_visible()] == ["a", "b"]


def test_confusion_maps_leave_out_zeros_and_repeated_labels() -> None:
    drawn = confusion_maps([(name, np.eye(9)) for name in "abcde"], GROUPS)
    first, second = drawn.axes[:2]
    assert [text.get_text() for text in first.texts] == ["100"] * 4
    assert first.yaxis.get_tick_params()["labelleft"]
    assert not second.yaxis.get_tick_params()["labelleft"]


def test_legend_takes_more_lines_where_labels_are_long(experiment: Experiment) -> None:
    series = [replace(one, label=f"{one.label} ({'setting ' * 12})") for one in experiment.series]
    wide = miou_over_steps(replace(experiment, series=tuple(series))).legends[0]
    assert miou_over_steps(experiment).legends[0]._ncols == 3
    assert wide._ncols == 1


def test_svg_takes_the_page_s_colour_and_stays_apart(experiment: Experiment) -> None:
    one, other = (inline_svg(miou_over_steps(experiment), name) for name in ("one", "other"))
    assert one == inline_svg(miou_over_steps(experiment), "one")
    ElementTree.fromstring(one)
    assert "currentColor" in one
    assert "<text" in one

    def ids(svg: str) -> set[str]:
        return {
            element.get("id", "")
            for element in ElementTree.fromstring(svg).iter()
            if element.tag.endswith("Path")
        }

    assert ids(one)
    assert ids(one).isdisjoint(ids(other))


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_files(experiment: Experiment, tmp_path: Path, suffix: str) -> None:
    path = save_figure(miou_over_steps(experiment), tmp_path / f"steps.{suffix}")
    again = save_figure(miou_over_steps(experiment), tmp_path / f"again.{suffix}")
    assert path.stat().st_size > 1000
    if suffix == "png":
        assert path.read_bytes() == again.read_bytes()


def test_each_method_has_its_own_style() -> None:
    styles = method_styles(["tiss", "mine", "tiss", "ft", "yours"])
    assert len(set(styles)) == 5
    assert styles[0] == STYLES["tiss"]
    assert method_styles(["tiss"]) == [STYLES["tiss"]]
