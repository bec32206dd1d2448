"""Test images that show old and new classes, each method's masks and feature maps, and similarities of its tokens."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.report.fakes import folder, results, sort
from tiss.config import ModelConfig
from tiss.data.loader import TestLoader
from tiss.engine.run import load_run
from tiss.errors import TissError
from tiss.losses import patch_similarity
from tiss.models import SegmentationModel, build_model, tokens
from tiss.palette import class_colours
from tiss.report import gallery
from tiss.report.gallery import Gallery
from tiss.report.pages import KINDS, write_figures
from tiss.report.plots import save_figure
from tiss.scenarios import Scenario, load_scenario

CLASSES = ("background", "cat", "pottedplant", "elephant")
Masks = dict[str, list[tuple[np.ndarray, ...] | None]]


def gallery_of(
    image: np.ndarray, truth: np.ndarray, masks: Masks, classes: tuple[str, ...], colours: object = None
) -> Gallery:
    groups = tuple((channel,) for channel in range(1, 1 + len(next(iter(masks.values())))))
    known = class_colours(len(classes)) if colours is None else colours
    return Gallery(("a",), (image,), (truth,), masks, {}, classes, groups, tuple(known))  # type: ignore[arg-type]


def test_images_mix_old_and_new_and_cover_the_classes(scenario: Scenario):
    chosen = gallery.choose_images(scenario[-1].test, scenario.groups, 5)
    assert chosen == gallery.choose_images(scenario[-1].test, scenario.groups, 5)
    assert len(set(chosen)) == 5
    present = scenario.dataset.classes_present("test")
    for id in chosen[:3]:
        assert present[id] & {1, 2, 3, 4} and present[id] & {5, 6, 7, 8}
    assert len(frozenset().union(*(present[id] for id in chosen))) >= 7


def test_colours_belong_to_classes_not_to_channels(scenario: Scenario):
    turned = load_scenario(scenario.dataset, order="8,7,6,5,4,3,2,1")
    plain = dict(zip(scenario.classes, gallery.channel_colours(scenario), strict=True))
    assert dict(zip(turned.classes, gallery.channel_colours(turned), strict=True)) == plain
    assert gallery.channel_colours(scenario) == class_colours(9)


def test_masks_and_features_of_each_method_after_each_step(model_runs: list[Path]):
    experiment = sort(*model_runs)
    shown = gallery.collect_gallery(experiment, count=2)
    assert shown is not None
    assert len(shown.ids) == len(shown.images) == len(shown.truth) == 2
    assert shown.images[0].shape == (64, 64, 3)
    assert list(shown.masks) == ["TISS", "offline"]
    for step, masks in enumerate(shown.masks["TISS"]):
        assert masks is not None
        assert max(int(mask.max()) for mask in masks) <= (4, 6, 8)[step]
    assert [masks is None for masks in shown.masks["offline"]] == [True, True, False]
    assert (shown.paint(shown.truth[0])[shown.truth[0] == 255] == 200).all()
    assert sum(len(axis.images) for axis in gallery.gallery_figure(shown, 0).axes) == 2 + 3 + 1
    features = gallery.feature_figure(shown, 0).axes
    assert sum(len(axis.images) for axis in features) == 2 + 3  # offline has no steps
    assert gallery.collect_gallery(sort(results())) is None  # no models


def test_a_saved_gallery_keeps_the_classes_colours(tmp_path: Path):
    photo = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    mask = np.repeat([[0, 1, 2]], 40, 0).repeat(14, 1)[:, :40].astype(np.uint8)
    colours = ((0, 0, 0), (192, 1, 3), (7, 8, 254))
    shown = gallery_of(photo, mask, {"TISS": [(mask,), (mask,)]}, CLASSES[:3], colours)
    path = save_figure(gallery.gallery_figure(shown, 0), tmp_path / "gallery.png")
    with Image.open(path) as image:
        assert set(colours) <= {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}


def test_the_legend_names_every_class_that_can_be_seen():
    names = ("background", *(f"class number {number}" for number in range(1, 12)))
    truth = np.zeros((50, 50), np.uint8)
    truth[:10], truth[-5:] = 2, 255
    guess = truth.copy()
    guess[20:30] = np.arange(3, 8).repeat(10)
    guess[40, :5], guess[41, :4] = 10, 11  # 0.2 % of the pixels, and a little less
    masks: Masks = {"MiB": [(truth,), (guess,), None], "offline": [None, None, (truth,)]}
    drawn = gallery.gallery_figure(gallery_of(np.zeros((50, 50, 3), np.uint8), truth, masks, names), 0)
    (legend,) = drawn.legends
    seen = (0, 2, 3, 4, 5, 6, 7, 10)
    assert [text.get_text() for text in legend.get_texts()] == [*(names[c] for c in seen), "ignored"]
    faces = [patch.get_facecolor()[:3] for patch in legend.get_patches()][:-1]
    assert np.round(255 * np.array(faces)).tolist() == [list(class_colours(12)[c]) for c in seen]
    drawn.draw_without_rendering()
    assert legend.get_window_extent().width <= drawn.bbox.width
    top = max(text.get_window_extent().y1 for text in legend.get_texts())
    assert top <= min(axis.get_window_extent().y0 for axis in drawn.axes)


def test_classes_are_named_inside_of_their_regions():
    mask = np.zeros((60, 60), np.uint8)
    mask[20:, 10:50] = 1
    masks: Masks = {"MiB": [(mask,), (2 * mask,)], "offline": [None, (mask,)]}
    names = ("background", "horse", "motorbike")
    drawn = gallery.gallery_figure(gallery_of(np.zeros((60, 60, 3), np.uint8), mask, masks, names), 0)
    axes = np.array(drawn.axes).reshape(2, 3)
    written = [[text.get_text() for text in axis.texts] for axis in axes.flat]
    assert written == [[], ["horse"], ["motorbike"], ["horse"], [], ["horse"]]
    drawn.draw_without_rendering()
    text = axes[0][2].texts[0].get_window_extent()
    inside = axes[0][2].transData.inverted().transform([[text.x0, text.y0], [text.x1, text.y1]])
    assert inside[:, 0].min() >= 10 and inside[:, 0].max() <= 50


def test_names_that_do_not_fit_are_shortened_or_left_out():
    mask = np.full((100, 100), 255, np.uint8)
    mask[:12, :40] = 2  # pottedplant needs 68 pixels, pott. 31
    mask[40:52, :40] = 3
    mask[80:, :10] = 1  # cat needs 19
    assert [name for name, _, _ in gallery.names_in(mask, CLASSES, 0.1)] == ["pott.", "elep."]
    assert [name for name, _, _ in gallery.names_in(mask, CLASSES, 0.05)] == list(CLASSES[1:])
    bent = np.zeros((100, 100), np.uint8)
    bent[:, :30] = bent[:, 70:] = bent[:20] = 1
    ((_, x, y),) = gallery.names_in(bent, CLASSES, 0.08)
    assert bent[int(y * 100), int(x * 100)] == 1  # not in its middle, which is outside of it
    bent[bent == 1] = 255
    assert gallery.names_in(bent, CLASSES, 0.1) == []


def test_the_same_features_have_the_same_colours_and_drift_shows():
    first = np.random.default_rng(0).normal(size=(8, 5, 6))
    colours = gallery.principal_colours([first, first.copy(), -first])
    assert colours[0].shape == (5, 6, 3)
    np.testing.assert_array_equal(colours[0], colours[1])
    assert np.abs(colours[0].astype(int) - colours[2]).mean() > 50
    assert (colours[0].min(), colours[0].max()) == (0, 255)
    assert gallery.principal_colours([np.ones((4, 3, 3))])[0].shape == (3, 3, 3)
    (tiny,) = gallery.principal_colours([first[:, :1, :2]])  # fewer places than colours
    assert tiny.shape == (1, 2, 3)


def test_every_kind_of_figure_is_written(model_runs: list[Path], tmp_path: Path):
    found = [sort(*model_runs)]
    written = write_figures(found, tmp_path / "figures", gallery=1, images=2)
    kinds = {path.stem.removeprefix("shapes-4-2-overlapped-").removesuffix("-0") for path in written}
    assert kinds == set(KINDS) - {"differences"}  # there is no MiB
    assert {path.suffix for path in written} == {".svg", ".png", ".json"}
    assert all(path.stat().st_size > 500 for path in written)
    with pytest.raises(TissError, match="steps"):
        write_figures(found, tmp_path, ["stps"])


def test_similarity_is_the_mean_over_the_images(model_runs: list[Path]):
    split = gallery.even_ids(load_run(model_runs[0]).scenario[-1].test, 20)  # a full batch and a part of one
    assert gallery.even_ids(split, 3).ids == tuple(split.ids[index] for index in (0, 6, 13))
    assert gallery.even_ids(split, 500).ids == split.ids
    experiment = sort(*model_runs)
    measured = gallery.experiment_similarity(experiment, count=20)
    assert measured is not None and measured["images"] == 20
    assert json.loads(json.dumps(measured)) == measured
    (method,) = measured["methods"]  # training on everything at once has no steps to compare
    assert method["label"] == "TISS"
    models = [SegmentationModel.from_pretrained(model_runs[0] / f"step-{step}").eval() for step in (0, 1)]
    with TestLoader(split, 64, batch=20, kind="workers", workers=0) as loader:
        images = next(iter(loader)).image
    with torch.inference_mode():
        features = [[tokens(f) for f in model(images, (0, -1)).features] for model in models]
    for step, (first, last) in zip(method["steps"], features, strict=False):
        assert step["depth"] == pytest.approx([float(v) for v in patch_similarity(last, first)], abs=2e-5)
    assert method["steps"][0]["previous"] is None
    expected = [float(value) for value in patch_similarity(features[1][1], features[0][1])]
    assert method["steps"][1]["previous"] == pytest.approx(expected, abs=2e-5)
    scores = experiment.series[0].first.steps[1].old.with_background
    assert method["steps"][1]["old"] == pytest.approx(scores, abs=1e-4)
    drawn = gallery.similarity_figure(measured)
    counts = [len(axis.collections[0].get_offsets()) for axis in drawn.axes]
    assert counts == [2, 2, 2, 2]  # step 0 has no model before it, and no new classes
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["TISS", "step 1", "step 2"]
    areas = drawn.axes[0].collections[0].get_sizes().tolist()
    assert areas == [one.get_sizes()[0] for one in drawn.axes[0].collections[1:]]  # as the legend shows them


def test_where_there_is_no_similarity_the_reason_is_told(model_runs: list[Path], tmp_path: Path):
    values = results("mib", encoder="resnet_micro", decoder="deeplabv3")
    run = folder(tmp_path, values)
    config = ModelConfig(encoder="resnet_micro", decoder="deeplabv3", image_size=64)
    for step in range(3):
        model = build_model(config, values["classes"][: 5 + 2 * step], 64, seed=0)
        model.save_pretrained(run / f"step-{step}")
        (run / f"step-{step}" / "confusion.safetensors").touch()
    found = [sort(run)]
    with pytest.raises(TissError, match="resnet_micro: no patch tokens"):
        write_figures(found, tmp_path / "figures", ["similarity"], images=2)
    assert write_figures(found, tmp_path / "figures", ["steps", "similarity"], images=2)  # the rest is drawn
    assert "step folders" in gallery.why_no_similarity(sort(results()))
    assert "all classes at once" in gallery.why_no_similarity(sort(*model_runs[1:]))
