import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.samples import png
from tiss.data.convert.labels import Polygon, Runs, Stamp, ellipse, fill_ring, paint
from tiss.errors import TissError


def inside_by_winding(points: list[tuple[float, float]], x: float, y: float) -> bool:
    """Even-odd test of one point, edge by edge: slow and plain."""
    inside = False
    for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1], strict=True):
        if (y0 > y) != (y1 > y) and x < x0 + (y - y0) * (x1 - x0) / (y1 - y0):
            inside = not inside
    return inside


corner = st.tuples(st.integers(-40, 140), st.integers(-40, 140)).map(
    lambda p: (p[0] / 10 + 0.003, p[1] / 10 + 0.007)
)


@settings(max_examples=150, deadline=None)
@given(st.lists(corner, min_size=3, max_size=8))
def test_a_pixel_is_in_if_its_centre_is(points: list[tuple[float, float]]) -> None:
    patch = Polygon((points,)).cover(10, 9)
    drawn = np.zeros((10, 9), bool)
    rows, columns = patch.inside.shape
    drawn[patch.top : patch.top + rows, patch.left : patch.left + columns] = patch.inside
    expected = [[inside_by_winding(points, x + 0.5, y + 0.5) for x in range(9)] for y in range(10)]
    assert drawn.tolist() == expected


def test_outlines_that_share_an_edge_fill_the_picture_once() -> None:
    first = fill_ring([(0, 0), (8, 0), (0, 8)], (8, 8))
    second = fill_ring([(8, 0), (8, 8), (0, 8)], (8, 8))
    assert first.sum() == 28
    assert not (first & second).any()
    assert (first | second).all()


def test_parts_and_holes() -> None:
    square = ((0, 0), (6, 0), (6, 6), (0, 6))
    hole = ((2, 2), (4, 2), (4, 4), (2, 4))
    assert Polygon((square,), (hole,)).cover(8, 8).area() == 32
    assert Polygon((square, hole)).cover(8, 8).area() == 36, "parts are joined"
    assert Polygon((((-5, -5), (3, -5), (3, 3), (-5, 3)),)).cover(8, 8).area() == 9
    assert Polygon((((20, 20), (30, 20), (30, 30)),)).cover(8, 8).area() == 0


def test_ellipse() -> None:
    patch = ellipse(4, 4, 3, 3).cover(8, 8)
    assert (patch.top, patch.left, patch.inside.shape) == (1, 1, (6, 6))
    assert patch.area() == 32
    assert abs(ellipse(50, 50, 40, 40).cover(100, 100).area() - np.pi * 1600) < 20
    assert ellipse(-9, -9, 3, 3).cover(8, 8).area() == 0
    lying, tilted = (ellipse(50, 50, 40, 10, turn).cover(100, 100) for turn in (0, 45))
    assert lying.inside.shape == (20, 80)
    assert abs(lying.area() - np.pi * 400) < 10 and abs(tilted.area() - np.pi * 400) < 10
    assert tilted.inside[50 - tilted.top + 20, 50 - tilted.left + 20], "clockwise: down on the right"


def test_runs_in_a_box_go_along_the_rows() -> None:
    patch = Runs(2, 3, (2, 3, 1), top=6, left=7, rows=True).cover(8, 9)
    assert (patch.top, patch.left) == (6, 7)
    assert patch.inside.astype(int).tolist() == [[0, 0], [1, 1]], "cut at the border"
    with pytest.raises(TissError, match="runs do not fill"):
        Runs(2, 3, (2, 3), rows=True).cover(8, 9)
    with pytest.raises(TissError, match="impossible size"):
        Runs(-2, -3, (6,), rows=True).cover(8, 9)


def test_runs_go_down_the_columns() -> None:
    patch = Runs(3, 2, (1, 2, 1, 1, 1)).cover(3, 2)
    assert patch.inside.astype(int).tolist() == [[0, 0], [1, 1], [1, 0]]
    with pytest.raises(TissError, match="runs do not fill"):
        Runs(3, 2, (1, 2)).cover(3, 2)
    with pytest.raises(TissError, match="runs do not fill"):
        Runs(3, 2, (7, -1)).cover(3, 2)
    with pytest.raises(TissError, match="of 2 × 3 on 9 × 9 pixels"):
        Runs(3, 2, (6,)).cover(9, 9)


def test_stamps_are_cut_at_the_border() -> None:
    full = png(np.full((4, 4), 255, np.uint8))
    for left, top, area in ((0, 0, 16), (-1, -3, 3), (6, 6, 4), (8, 0, 0), (-4, 0, 0)):
        patch = Stamp(full, left, top).cover(8, 8)
        assert patch.area() == area, (left, top)
        assert paint([("a", Stamp(full, left, top))], 8, 8, {"a": 1}).sum() == area
    transparent = np.zeros((2, 2, 4), np.uint8)
    transparent[0, 0, 3] = 9
    assert Stamp(png(transparent), 0, 0).cover(8, 8).inside.tolist() == [[True, False], [False, False]]
    with pytest.raises(TissError, match="broken bitmap"):
        Stamp(b"hello", 0, 0).cover(8, 8)


LARGE = Polygon((((0, 0), (8, 0), (8, 8), (0, 8)),))
SMALL = Polygon((((2, 2), (4, 2), (4, 4), (2, 4)),))


def test_the_smaller_object_is_on_top() -> None:
    numbers = {"small": 1, "large": 2}
    for objects in ([("small", SMALL), ("large", LARGE)], [("large", LARGE), ("small", SMALL)]):
        assert paint(objects, 8, 8, numbers)[3, 3] == 1
    assert paint([("small", SMALL), ("large", LARGE)], 8, 8, numbers, "order")[3, 3] == 2
    same = [("large", LARGE), ("small", LARGE)]
    assert paint(same, 8, 8, numbers)[3, 3] == 1, "of two of one size, the later"


def test_special_labels() -> None:
    objects = [("large", LARGE), ("void", SMALL), ("unknown", SMALL)]
    assert paint(objects, 8, 8, {"large": 1})[3, 3] == 255
    assert paint([("large", LARGE), ("_background_", SMALL)], 8, 8, {"large": 1})[3, 3] == 0
