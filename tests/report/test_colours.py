"""A method looks the same in every figure, and no two look alike."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from tiss.methods.base import METHODS
from tiss.report.colours import SPARE, STYLES, method_styles

BUILT_IN = [name for name in METHODS if METHODS.get(name).__module__.startswith("tiss.")]
# how a reader without red or green cones sees linear RGB (Machado and others, 2009)
DEUTERANOPIA = [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.011820, 0.042940, 0.968881],
]
PROTANOPIA = [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
]
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, seen: NDArray[np.float64]) -> NDArray[np.float64]:
    value = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    x, y, z = TO_XYZ @ np.clip(seen @ linear, 0, 1) / TO_XYZ.sum(1)
    f = [np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_every_built_in_method_has_a_style_of_its_own() -> None:
    assert set(BUILT_IN) == set(STYLES)
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)


@pytest.mark.parametrize(
    "seen", [np.eye(3), DEUTERANOPIA, PROTANOPIA], ids=["usual", "deuteranopia", "protanopia"]
)
def test_methods_of_one_line_differ_in_colour_to_every_reader(seen: NDArray[np.float64]) -> None:
    matrix = np.array(seen)
    close = [
        (one, other)
        for one, other in combinations(STYLES, 2)
        if STYLES[one].dashes == STYLES[other].dashes
        and np.linalg.norm(lab(STYLES[one].colour, matrix) - lab(STYLES[other].colour, matrix)) < 12
    ]
    assert close == []


def test_a_method_s_style_does_not_depend_on_the_others() -> None:
    for method in BUILT_IN:
        for others in ([], ["ft", "mine"], BUILT_IN[::-1]):
            among = [*(one for one in others if one != method), method]
            assert method_styles(among)[-1] == STYLES[method]


def test_others_take_what_is_left_and_keep_it() -> None:
    (alone,) = method_styles(["mine"])
    assert alone in SPARE
    assert method_styles(["tiss", "mine", "ft"])[1] == alone
    many = [f"mine{number}" for number in range(len(SPARE))]
    assert len(set(method_styles(many))) == len(SPARE)
    assert dict(zip(many, method_styles(many), strict=True)) == dict(
        zip(many[::-1], method_styles(many[::-1]), strict=True)
    )
    assert len(method_styles([*many, "one more"])) == len(SPARE) + 1


def test_a_method_named_again_keeps_its_colour() -> None:
    styles = method_styles(["tiss", "ft", *["tiss"] * 9])
    assert styles[0] == STYLES["tiss"]
    assert {style.colour for style in (styles[0], *styles[2:])} == {STYLES["tiss"].colour}
    assert len(set(styles)) == 11
