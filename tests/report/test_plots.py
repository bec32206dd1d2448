"""Figures: drawn from the figures of the runs, fit for print and for a page of any colour."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.report.fakes import results
from tiss.report.colours import STYLES
from tiss.report.plots import class_map, forgetting_map, inline_svg, miou_over_steps, save_figure
from tiss.report.runs import Experiment, experiments, load_results


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
    assert lines["FT"].get_color() == STYLES["ft"].colour
    assert "offline (all at once)" in lines
    assert np.isnan(new.get_lines()[0].get_ydata()[0])  # nothing is new at step 0
    assert len(everything.collections) == 2  # deviations of the two methods that have steps


def test_the_background_is_named_only_where_it_counts(experiment: Experiment) -> None:
    def titles(one: Experiment, average: str | None = None) -> list[str]:
        drawn = miou_over_steps(one, average=average)
        assert [axis.get_ylabel() for axis in drawn.axes] == ["mIoU in %", "", ""]
        return [axis.get_title() for axis in drawn.axes]

    old, new, everything = titles(experiment)
    assert old.endswith("\nwith background") and everything.endswith("\nwith background")
    assert "background" not in new
    assert titles(experiment, "without_background")[0].endswith("\nwithout background")
    bare = experiments(load_results([results("ft", has_background=False)]))[0]
    assert not any("background" in title for title in titles(bare))


def test_maps_show_every_class(experiment: Experiment) -> None:
    assert len(class_map(experiment).axes[0].texts) == 3 * 9
    lost = forgetting_map(experiment)
    assert lost is not None
    assert len(lost.axes[0].texts) == 2 * 6  # offline forgets nothing; the last step's classes cannot be lost
    once = experiments(load_results([results("offline")]))[0]
    assert forgetting_map(once) is None


def test_legend_takes_more_lines_where_labels_are_long(experiment: Experiment) -> None:
    series = [replace(one, label=f"{one.label} ({'setting ' * 12})") for one in experiment.series]
    wide = miou_over_steps(replace(experiment, series=tuple(series))).legends[0]
    assert miou_over_steps(experiment).legends[0]._ncols == 3
    assert wide._ncols == 1


def test_a_long_legend_leaves_the_panels_their_room(experiment: Experiment) -> None:
    few, many = (
        replace(
            experiment,
            series=tuple(
                replace(experiment.series[0], label=f"{'a method with a long name':<40}{n}")
                for n in range(count)
            ),
        )
        for count in (2, 18)
    )
    heights = []
    for one in (few, many):
        drawn = miou_over_steps(one)
        drawn.draw_without_rendering()
        heights.append(drawn.axes[0].get_window_extent().height / drawn.dpi)
    assert heights[1] > 0.7 * heights[0] > 1


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
