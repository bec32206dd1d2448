"""Names inside of regions: only where they fit, and within."""

from __future__ import annotations

import numpy as np

from tiss.report.names import names_in

CLASSES = ("background", "cat", "pottedplant", "elephant")


def test_a_name_stands_inside_of_its_region() -> None:
    mask = np.zeros((100, 200), np.uint8)
    mask[10:40, 100:190] = 1
    (name,) = names_in(mask, CLASSES, 0.1)
    assert name.text == "cat"
    assert 100 + 9 <= name.x * 200 <= 190 - 9 and 10 + 5 <= name.y * 100 <= 40 - 5


def test_what_does_not_fit_is_shortened_or_left_out() -> None:
    mask = np.full((100, 100), 255, np.uint8)
    mask[:12, :40] = 2  # pottedplant needs 68 pixels, plant 31
    mask[40:52, :40] = 3  # elephant needs 50, elep. 31
    mask[80:, :10] = 1  # cat needs 19
    assert [name.text for name in names_in(mask, CLASSES, 0.1)] == ["plant", "elep."]
    assert [name.text for name in names_in(mask, CLASSES, 0.05)] == ["cat", "pottedplant", "elephant"]


def test_a_bent_region_is_named_inside_not_in_its_middle() -> None:
    mask = np.zeros((100, 100), np.uint8)
    mask[:, :30] = mask[:, 70:] = mask[:20] = 1
    (name,) = names_in(mask, CLASSES, 0.08)
    assert mask[int(name.y * 100), int(name.x * 100)] == 1


def test_background_and_ignored_pixels_have_no_name() -> None:
    mask = np.zeros((50, 50), np.uint8)
    mask[25:] = 255
    assert names_in(mask, CLASSES, 0.1) == []
