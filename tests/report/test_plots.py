"""Figures: drawn from the scores of the runs, fit for print and for a page of any colour."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.report.fakes import GROUPS, results, sort
from tiss.report import plots
from tiss.report.labels import SPARE, STYLES, looks_of
from tiss.report.runs import Experiment

# how a reader without red or green cones sees linear RGB (Machado and others, 2009), row by row
SEEN = {
    "usual": "1 0 0 0 1 0 0 0 1",
    "deuteranopia": "0.367322 0.860646 -0.227968 0.280085 0.672501 0.047413 -0.011820 0.042940 0.968881",
    "protanopia": "0.152286 1.052583 -0.204868 0.114503 0.786281 0.099216 -0.003882 -0.048116 1.051998",
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, seen: str) -> NDArray[np.float64]:
    """CIELAB, in which distances are about those that people see."""
    value = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    x, y, z = TO_XYZ @ np.clip(np.array(seen.split(), float).reshape(3, 3) @ linear, 0, 1) / TO_XYZ.sum(1)
    f = [np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", SEEN)
def test_methods_of_one_line_differ_in_colour_to_every_reader(seen: str):
    for one, other in combinations(STYLES.values(), 2):
        if one.line == other.line:
            assert np.linalg.norm(lab(one.colour, SEEN[seen]) - lab(other.colour, SEEN[seen])) >= 12, (
                one,
                other,
            )


def test_a_method_looks_the_same_in_every_figure():
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)
    assert looks_of([*STYLES, "mine"])[: len(STYLES)] == list(STYLES.values())
    (alone,) = looks_of(["mine"])
    assert alone in SPARE and looks_of(["tiss", "mine", "ft"])[1] == alone
    many = [f"mine{number}" for number in range(len(SPARE))]
    styles = dict(zip(many, looks_of(many), strict=True))
    assert len(set(styles.values())) == len(SPARE)
    assert styles == dict(zip(many[::-1], looks_of(many[::-1]), strict=True))
    again = looks_of(["tiss", "ft", *["tiss"] * 9])  # other settings: the same colour, other lines
    assert {style.colour for style in (again[0], *again[2:])} == {STYLES["tiss"].colour}
    assert len(set(again)) == 11


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    runs = [results(method, seed) for method in ("ft", "mib", "offline") for seed in (0, 1)]
    return sort(*runs)


def test_curves_show_the_scores(experiment: Experiment):
    old, new, everything = plots.miou_over_steps(experiment).axes
    lines = {line.get_label(): line for line in old.get_lines()}
    first = experiment.series[0].results
    expected = [np.mean([one.steps[step].old.with_background for one in first]) for step in range(3)]
    np.testing.assert_allclose(lines["FT"].get_ydata(), expected)
    assert lines["FT"].get_color() == STYLES["ft"].colour
    assert "offline (all at once)" in lines
    assert np.isnan(new.get_lines()[0].get_ydata()[0])  # nothing is new at step 0
    assert len(everything.collections) == 2  # deviations of the two methods that have steps
    assert [axis.get_title().endswith("\nwith background") for axis in (old, new, everything)] == [1, 0, 1]
    bare = sort(results("ft", has_background=False))
    assert not any("background" in axis.get_title() for axis in plots.miou_over_steps(bare).axes)


def test_maps_show_every_class(experiment: Experiment):
    assert len(plots.class_map(experiment).axes[0].texts) == 3 * 9
    lost = plots.forgetting_map(experiment)
    assert lost is not None
    assert len(lost.axes[0].texts) == 2 * 6  # offline forgets nothing; the last step's classes cannot be lost
    assert plots.forgetting_map(sort(results("offline"))) is None


def test_a_long_legend_leaves_the_panels_their_room(experiment: Experiment):
    heights, columns = [], []
    for count in (2, 18):
        long = f"{'a method with a long name':<40}"
        series = [replace(experiment.series[0], label=f"{long}{n}") for n in range(count)]
        drawn = plots.miou_over_steps(replace(experiment, series=tuple(series)))
        drawn.draw_without_rendering()
        heights.append(drawn.axes[0].get_window_extent().height / drawn.dpi)
        columns.append(drawn.legends[0]._ncols)
        assert drawn.legends[0].get_window_extent().width <= drawn.bbox.width
    assert heights[1] > 0.7 * heights[0] > 1
    assert max(columns) < plots.miou_over_steps(experiment).legends[0]._ncols == 3


def test_points_are_differences_to_mib_and_bars_twice_the_larger_deviation():
    runs = [results(m, seed) for m in ("ft", "mib", "mib+l1", "tiss", "offline") for seed in (0, 1, 2)]
    experiment = sort(*runs)
    drawn = plots.difference_figure(experiment)
    assert drawn is not None
    assert "FT" in drawn.get_supxlabel()  # too far away to be drawn
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == ["MiB+L1", "TISS"]
    base, first = experiment.series[1:3]
    for axis, part in zip(drawn.axes, ("old", "new", "all"), strict=True):
        own, other = (one.mean(part) for one in (first, base))
        assert own is not None and other is not None and own.deviation and other.deviation
        assert len(axis.containers) == 2
        point, _, (bar,) = axis.containers[0]
        assert point.get_xdata()[0] == pytest.approx(own.mean - other.mean)
        (ends,) = bar.get_segments()
        assert np.ptp(ends[:, 0]) / 2 == pytest.approx(2 * max(own.deviation, other.deviation))
    assert drawn.axes[0].get_xlim() == drawn.axes[1].get_xlim()
    alone = plots.difference_figure(sort(results("mib"), results("tiss")))
    assert alone is not None and alone.get_supxlabel() == "one seed"
    assert plots.difference_figure(sort(results("tiss"))) is None


def test_group_confusion_gives_shares_of_the_true_group():
    matrix = np.array([[8, 2, 0], [1, 2, 1], [0, 0, 0]])
    shares = plots.group_confusion(matrix, ((1,), (2,)))
    np.testing.assert_allclose(shares[:2], [[80, 20, 0], [25, 50, 25]])
    assert np.isnan(shares[2]).all()
    assert plots.group_confusion(matrix[:2, :2], ((1,), (2,))).shape == (2, 2)


def test_confusion_maps_have_one_map_per_method_and_labels_once():
    drawn = plots.confusion_maps([(name, np.eye(9)) for name in "abcdef"], GROUPS)
    shown = [axis for axis in drawn.axes if axis.get_visible()]
    assert [axis.get_title() for axis in shown] == list("abcdef")
    assert [text.get_text() for text in shown[0].texts] == ["100"] * 4  # no zeros
    assert [axis.get_ylabel() for axis in shown] == ["true", "", "", "", "true", ""]
    assert [axis.get_xlabel() for axis in shown] == ["", "", *["predicted"] * 4]
    assert [axis.yaxis.get_tick_params()["labelleft"] for axis in shown[:2]] == [True, False]
    drawn.draw_without_rendering()
    assert drawn.get_supxlabel().replace("\n", " ") == plots.SHARES
    caption = drawn._supxlabel.get_window_extent()
    assert caption.x0 >= 0 and caption.x1 <= drawn.bbox.width
    assert caption.y1 <= min(axis.get_tightbbox().y0 for axis in shown)
    label = "MiB (epochs 1, step_epochs 3, vit_small_patch14_dinov2)"
    drawn = plots.confusion_maps([(label, np.eye(9)) for _ in range(3)], GROUPS)
    drawn.draw_without_rendering()
    boxes = [axis.title.get_window_extent() for axis in drawn.axes]
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


def test_svg_takes_the_page_s_colour_and_ids_stay_apart(experiment: Experiment):
    one, other = (plots.inline_svg(plots.miou_over_steps(experiment), name) for name in ("one", "other"))
    assert one == plots.inline_svg(plots.miou_over_steps(experiment), "one")
    assert "currentColor" in one and "<text" in one
    trees = [ElementTree.fromstring(svg) for svg in (one, other)]
    ids = [{e.get("id", "") for e in tree.iter() if e.tag.endswith("Path")} for tree in trees]
    assert ids[0] and ids[0].isdisjoint(ids[1])


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_files_are_the_same_each_time(experiment: Experiment, tmp_path: Path, suffix: str):
    paths = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    one, again = (plots.save_figure(plots.miou_over_steps(experiment), path) for path in paths)
    assert one.stat().st_size > 1000
    assert one.read_bytes() == again.read_bytes()
