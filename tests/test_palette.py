"""Class colours are told apart, and stay."""

from itertools import combinations

import numpy as np

from tests.report.test_plots import SEEN, lab
from tiss.palette import class_colours


def test_colours_of_classes_differ_and_stay():
    colours = class_colours(24)
    assert class_colours(60)[:24] == colours
    labs = [lab("#{:02x}{:02x}{:02x}".format(*colour), SEEN["usual"]) for colour in colours]
    assert min(np.linalg.norm(one - other) for one, other in combinations(labs, 2)) > 15
