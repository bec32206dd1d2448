"""Feature maps as colours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tiss.report.features import feature_figure, gallery_features, principal_colours
from tiss.report.figures import KINDS, write_figures
from tiss.report.gallery import collect_gallery
from tiss.report.runs import experiments, load_results


def test_the_same_features_have_the_same_colours_and_drift_shows() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(size=(8, 5, 6))
    again, turned = first.copy(), -first
    colours = principal_colours([first, again, turned])
    assert colours[0].shape == (5, 6, 3)
    np.testing.assert_array_equal(colours[0], colours[1])
    assert np.abs(colours[0] - colours[2]).mean() > 0.2
    assert all(0 <= colour.min() <= colour.max() <= 1 for colour in colours)


def test_constant_features_do_not_divide_by_zero() -> None:
    assert np.isfinite(principal_colours([np.ones((4, 3, 3))])[0]).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 2)])
def test_maps_with_fewer_places_than_colours_have_colours(size: tuple[int, int]) -> None:
    (colours,) = principal_colours([np.random.default_rng(0).normal(size=(8, *size))])
    assert colours.shape == (*size, 3)


def test_figure_has_a_map_a_step(model_runs: list[Path]) -> None:
    (experiment,) = experiments(load_results(model_runs))
    gallery = collect_gallery(experiment, 1)
    assert gallery is not None
    drawn = feature_figure(gallery, gallery_features(experiment, gallery))
    assert sum(len(axis.images) for axis in drawn.axes) == 2 + 3


def test_every_kind_of_figure_is_written(model_runs: list[Path], tmp_path: Path) -> None:
    found = experiments(load_results(model_runs))
    written = write_figures(found, tmp_path / "figures", pictures=1, images=2)
    kinds = {path.stem.removeprefix("shapes-4-2-overlapped-").removesuffix("-0") for path in written}
    assert kinds == set(KINDS)
    assert {path.suffix for path in written} == {".svg", ".png", ".json"}
    assert all(path.stat().st_size > 500 for path in written)
