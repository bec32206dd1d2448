"""Pictures that tell the story, and each method's masks for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tests.report.fakes import results
from tiss.palette import class_colours
from tiss.report.colours import channel_colours
from tiss.report.gallery import Gallery, choose_pictures, collect_gallery, gallery_figure
from tiss.report.plots import save_figure
from tiss.report.runs import experiments, load_results
from tiss.scenarios.scenario import Scenario, load_scenario


def test_pictures_mix_old_and_new_and_cover_the_classes(scenario: Scenario) -> None:
    chosen = choose_pictures(scenario[-1].test, scenario.groups, 5)
    assert chosen == choose_pictures(scenario[-1].test, scenario.groups, 5)
    assert len(set(chosen)) == 5
    present = scenario.dataset.classes_present("test")
    for id in chosen[:3]:
        assert present[id] & {1, 2, 3, 4}
        assert present[id] & {5, 6, 7, 8}
    assert len(frozenset().union(*(present[id] for id in chosen))) >= 7


def test_colours_belong_to_classes_not_to_channels(scenario: Scenario) -> None:
    turned = load_scenario(scenario.dataset, order="8,7,6,5,4,3,2,1")
    plain = dict(zip(scenario.classes, channel_colours(scenario), strict=True))
    assert dict(zip(turned.classes, channel_colours(turned), strict=True)) == plain
    assert channel_colours(scenario) == class_colours(9)


def test_masks_of_each_method_after_each_step(model_runs: list[Path]) -> None:
    (experiment,) = experiments(load_results(model_runs))
    gallery = collect_gallery(experiment, count=2)
    assert gallery is not None
    assert len(gallery.ids) == len(gallery.images) == len(gallery.truth) == 2
    assert gallery.images[0].shape == (64, 64, 3)
    assert list(gallery.masks) == ["TISS", "offline"]
    for step, masks in enumerate(gallery.masks["TISS"]):
        assert masks is not None
        assert max(int(mask.max()) for mask in masks) <= (4, 6, 8)[step]
    assert [masks is None for masks in gallery.masks["offline"]] == [True, True, False]
    painted = gallery.paint(gallery.truth[0])
    inside = gallery.truth[0] == 255
    assert (painted[inside] == 200).all()
    drawn = gallery_figure(gallery, 0)
    assert sum(len(axis.images) for axis in drawn.axes) == 2 + 3 + 1


def test_without_models_there_is_no_gallery() -> None:
    assert collect_gallery(experiments(load_results([results()]))[0]) is None


def test_paint_gives_channels_their_colours() -> None:
    gallery = Gallery((), (), (), {}, ("background", "cat"), ((1,),), ((1, 2, 3), (4, 5, 6)))
    np.testing.assert_array_equal(gallery.paint(np.array([[0, 1]], np.uint8)), [[[1, 2, 3], [4, 5, 6]]])


def test_a_saved_gallery_keeps_the_classes_colours(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    photo = rng.integers(0, 256, (40, 40, 3), np.uint8)
    mask = np.repeat([[0, 1, 2]], 40, 0).repeat(14, 1)[:, :40].astype(np.uint8)
    colours = ((0, 0, 0), (192, 1, 3), (7, 8, 254))
    names = ("background", "cat", "dog")
    gallery = Gallery(("a",), (photo,), (mask,), {"TISS": [(mask,), (mask,)]}, names, ((1,), (2,)), colours)
    path = save_figure(gallery_figure(gallery, 0), tmp_path / "gallery.png")
    with Image.open(path) as picture:
        found = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
    assert set(colours) <= found
    assert path.stat().st_size < 300_000


def test_the_legend_names_every_class_that_can_be_seen() -> None:
    names = ("background", *(f"class number {number}" for number in range(1, 12)))
    groups = (tuple(range(1, 8)), (8, 9), (10, 11))
    truth = np.zeros((50, 50), np.uint8)
    truth[:10], truth[-5:] = 2, 255
    guess = truth.copy()
    guess[20:30] = np.arange(3, 8).repeat(10)
    guess[40, :5], guess[41, :4] = 10, 11  # 0.2 % of the pixels, and a little less
    other = np.full_like(truth, 9)
    masks: dict[str, list[tuple[np.ndarray, ...] | None]] = {
        "MiB": [(truth, other), (guess, truth), None],
        "offline": [None, None, (truth, truth)],
    }
    photo = np.zeros((50, 50, 3), np.uint8)
    colours = tuple(class_colours(12))
    gallery = Gallery(("a", "b"), (photo, photo), (truth, truth), masks, names, groups, colours)
    drawn = gallery_figure(gallery, 0)
    (legend,) = drawn.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == [*(names[channel] for channel in (0, 2, 3, 4, 5, 6, 7, 10)), "ignored"]
    faces = [patch.get_facecolor()[:3] for patch in legend.get_patches()][:-1]
    assert np.round(255 * np.array(faces)).tolist() == [list(colours[c]) for c in (0, 2, 3, 4, 5, 6, 7, 10)]
    drawn.draw_without_rendering()
    assert legend.get_window_extent().width <= drawn.bbox.width
    top = max(text.get_window_extent().y1 for text in legend.get_texts())
    assert top <= min(axis.get_window_extent().y0 for axis in drawn.axes)
    (second,) = gallery_figure(gallery, 1).legends
    shown = [text.get_text() for text in second.get_texts()]
    assert shown == [*(names[channel] for channel in (0, 2, 9)), "ignored"]


def test_classes_are_named_inside_of_their_regions() -> None:
    mask = np.zeros((60, 60), np.uint8)
    mask[20:, 10:50] = 1
    photo = np.zeros((60, 60, 3), np.uint8)
    colours = ((0, 0, 0), (192, 0, 128), (64, 0, 128))  # horse and motorbike look alike without green cones
    names = ("background", "horse", "motorbike")
    masks: dict[str, list[tuple[np.ndarray, ...] | None]] = {
        "MiB": [(mask,), (2 * mask,)],
        "offline": [None, (mask,)],
    }
    drawn = gallery_figure(Gallery(("a",), (photo,), (mask,), masks, names, ((1,), (2,)), colours), 0)
    axes = np.array(drawn.axes).reshape(2, 3)
    written = [[text.get_text() for text in axis.texts] for axis in axes.flat]
    assert written == [[], ["horse"], ["motorbike"], ["horse"], [], ["horse"]]
    drawn.draw_without_rendering()
    text = axes[0][2].texts[0].get_window_extent()
    inside = axes[0][2].transData.inverted().transform([[text.x0, text.y0], [text.x1, text.y1]])
    assert inside[:, 0].min() >= 10 and inside[:, 0].max() <= 50
