"""Where the pixels went."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tests.report.fakes import GROUPS
from tiss.report.confusion import CAPTION, confusion_maps, group_confusion


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


def test_the_unit_is_written_and_axes_are_named_where_they_are() -> None:
    drawn = confusion_maps([(name, np.eye(9)) for name in "abcdef"], GROUPS)
    shown = [axis for axis in drawn.axes if axis.get_visible()]
    assert [axis.get_ylabel() for axis in shown] == ["true", "", "", "", "true", ""]
    assert [axis.get_xlabel() for axis in shown] == [
        "",
        "",
        *["predicted"] * 4,
    ]  # below the last of each column
    texts = " ".join(text.get_text().replace("\n", " ") for text in drawn.texts)
    assert texts == CAPTION
    assert "%" in CAPTION and "false alarms" in CAPTION
    drawn.draw_without_rendering()
    caption = drawn.texts[0].get_window_extent()
    assert caption.x0 >= 0 and caption.x1 <= drawn.bbox.width
    assert caption.y1 <= min(axis.get_tightbbox().y0 for axis in shown)


def test_long_titles_do_not_reach_into_each_other() -> None:
    label = "MiB (epochs 1, step_epochs 3, vit_small_patch14_dinov2)"
    drawn = confusion_maps([(label, np.eye(9)) for _ in range(3)], GROUPS)
    drawn.draw_without_rendering()
    boxes = [axis.title.get_window_extent() for axis in drawn.axes]
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))
