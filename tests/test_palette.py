"""Class colours are told apart, by colour-blind readers too, and stay."""

from itertools import combinations

import numpy as np
import pytest

from tests.report.test_plots import SEEN, lab
from tiss.palette import class_colours


@pytest.mark.parametrize(("seen", "least"), [("usual", 33), ("deuteranopia", 13), ("protanopia", 13)])
def test_the_first_twenty_colours_are_far_apart(seen: str, least: float):
    """In CIELAB, where 2.3 is a difference that people just see; an overlay halves it."""
    labs = [lab("#{:02x}{:02x}{:02x}".format(*colour), SEEN[seen]) for colour in class_colours(21)]
    assert min(np.linalg.norm(one - other) for one, other in combinations(labs, 2)) > least


def test_a_class_keeps_its_colour_when_others_are_added():
    colours = class_colours(60)
    assert len(set(colours)) == 60
    assert all(class_colours(count) == colours[:count] for count in (2, 24, 40))
