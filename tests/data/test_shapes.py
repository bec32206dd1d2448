"""The drawn data set: deterministic, varied, and not to be solved by colour."""

import numpy as np
import pytest

from tiss.data.base import DATASETS, IGNORE
from tiss.data.shapes import Shapes
from tiss.errors import TissError


@pytest.fixture(scope="module")
def shapes() -> Shapes:
    return Shapes()


def test_is_a_data_set_with_eight_classes_and_1500_pictures(shapes: Shapes) -> None:
    assert DATASETS.get("shapes") is Shapes
    assert len(shapes.classes) == 8
    assert (len(shapes.ids("train")), len(shapes.ids("test"))) == (1200, 300)
    assert shapes.ids("train") == sorted(shapes.ids("train"))
    sample = shapes.read("test", shapes.ids("test")[7])
    assert sample.image.shape == (3, 64, 64)
    assert sample.label.shape == (64, 64)
    assert sample.image.numpy().dtype == sample.label.numpy().dtype == np.uint8


def test_the_seed_decides_and_the_count_does_not(shapes: Shapes) -> None:
    few = Shapes(train=70)
    for own, larger in zip(few.arrays("train"), shapes.arrays("train"), strict=True):
        np.testing.assert_array_equal(own, larger[:70])
    assert not np.array_equal(Shapes(seed=1, train=8).arrays("train")[0], few.arrays("train")[0][:8])
    assert not np.array_equal(shapes.arrays("test")[0][:8], few.arrays("train")[0][:8])


def test_scenes_are_varied(shapes: Shapes) -> None:
    _, labels = shapes.arrays("train")
    present = shapes.classes_present("train")
    for id, label in zip(shapes.ids("train")[:20], labels, strict=False):
        assert present[id] == frozenset(np.unique(label).tolist()) - {0, IGNORE}
    counts = np.array([len(values) for values in present.values()])
    assert (counts >= 2).mean() > 0.5  # several classes in a picture
    for value in range(1, 9):
        of_class = [id for id in present if value in present[id]]
        assert len(of_class) > 150
        area = np.sort((labels == value).sum((1, 2))[[value in present[id] for id in present]])
        assert area[int(0.9 * len(area))] > 2 * area[int(0.1 * len(area))]  # varied sizes


def test_colour_alone_does_not_tell_the_class(shapes: Shapes) -> None:
    """A table of the best class for each of 4,096 colours, learnt on all training pixels, under 30 mIoU."""

    def colours(split: str) -> tuple[np.ndarray, np.ndarray]:
        images, labels = shapes.arrays(split)
        cells = (images >> 4).astype(np.int64)
        cell = (cells[:, 0] << 8) | (cells[:, 1] << 4) | cells[:, 2]
        return cell[labels != IGNORE], labels[labels != IGNORE].astype(np.int64)

    cell, label = colours("train")
    seen = np.bincount(cell * 9 + label, minlength=4096 * 9).reshape(4096, 9)
    share = seen.sum(0)
    test_cell, truth = colours("test")
    for weights in (np.ones(9), 1 / share):  # the likeliest class, and the one likelier than its share
        guess = np.argmax(seen * weights, axis=1)[test_cell]
        hit = np.bincount(truth[guess == truth], minlength=9)
        union = np.bincount(truth, minlength=9) + np.bincount(guess, minlength=9) - hit
        assert 100 * np.mean(hit / union) < 30


def test_mistakes_are_named(shapes: Shapes) -> None:
    with pytest.raises(TissError, match="no folder"):
        Shapes(root="somewhere")
    with pytest.raises(TissError, match="no split 'val'"):
        shapes.ids("val")
    with pytest.raises(TissError, match="no image 'train-99999'"):
        shapes.read("train", "train-99999")
