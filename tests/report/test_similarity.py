"""Similarities of patch tokens, measured from saved models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.report.fakes import folder, results
from tiss.config import ModelConfig
from tiss.errors import TissError
from tiss.losses import patch_similarity
from tiss.models.build import build_model
from tiss.models.contract import tokens
from tiss.models.model import SegmentationModel
from tiss.report.figures import write_figures
from tiss.report.gallery import read_batch
from tiss.report.runs import experiments, load_results
from tiss.report.similarity import (
    Similarities,
    even_ids,
    experiment_similarity,
    measure_similarity,
    read_images,
    similarity_figure,
    why_no_similarity,
)
from tiss.scenarios.scenario import Scenario


def test_similarity_is_the_mean_over_the_pictures(model_runs: list[Path], scenario: Scenario) -> None:
    split = even_ids(scenario[-1].test, 20)  # one full batch and a part of one
    measured = measure_similarity(model_runs[0], 2, read_images(split, 64))
    assert measured is not None
    models = [SegmentationModel.from_pretrained(model_runs[0] / f"step-{step}").eval() for step in (0, 1)]
    images = read_batch(split, 64).image
    with torch.inference_mode():
        features = [[tokens(f) for f in model(images, (0, -1)).features] for model in models]
    for step, (first, last) in enumerate(features):
        expected = [float(value) for value in patch_similarity(last, first)]
        assert measured[step].depth == pytest.approx(expected, abs=2e-5)
    assert measured[0].previous is None
    expected = [float(value) for value in patch_similarity(features[1][1], features[0][1])]
    assert measured[1].previous == pytest.approx(expected, abs=2e-5)
    assert measured[1].previous[0] == pytest.approx(1, abs=1e-5)  # the encoder did not move in these runs


def test_pictures_are_spread_evenly(scenario: Scenario) -> None:
    split = scenario[-1].test
    assert even_ids(split, 3).ids == (split.ids[0], split.ids[20], split.ids[40])
    assert even_ids(split, 500).ids == split.ids


def test_figure_has_a_point_a_step(model_runs: list[Path]) -> None:
    (experiment,) = experiments(load_results(model_runs))
    measured = experiment_similarity(experiment, count=4)
    assert measured is not None
    assert [one.label for one in measured.methods] == ["TISS"]  # everything at once has no steps to compare
    drawn = similarity_figure(measured)
    counts = [len(axis.collections[0].get_offsets()) for axis in drawn.axes]
    assert counts == [2, 2, 2, 2]  # step 0 has no model before it, and no new classes
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["TISS", "step 1", "step 2"]
    assert "the larger the point, the later the step" in legend.get_title().get_text()
    areas = drawn.axes[0].collections[0].get_sizes().tolist()
    assert areas == [one.get_sizes()[0] for one in drawn.axes[0].collections[1:]]  # as the legend shows them


def test_without_patch_tokens_the_reason_is_told(tmp_path: Path) -> None:
    values = results("mib", encoder="resnet_micro", decoder="deeplabv3")
    run = folder(tmp_path, values)
    config = ModelConfig(encoder="resnet_micro", decoder="deeplabv3", image_size=64)
    for step in range(3):
        build_model(config, values["classes"][: 5 + 2 * step], 64, seed=0).save_pretrained(
            run / f"step-{step}"
        )
    found = experiments(load_results([run]))
    assert experiment_similarity(found[0], count=2) is None
    with pytest.raises(TissError, match="resnet_micro: no patch tokens"):
        write_figures(found, tmp_path / "figures", ["similarity"], images=2)
    assert write_figures(found, tmp_path / "figures", ["steps", "similarity"], images=2)  # the rest is drawn


def test_other_reasons_for_no_similarity(model_runs: list[Path]) -> None:
    (bare,) = experiments(load_results([results()]))
    assert why_no_similarity(bare) == "it needs the runs' step folders"
    (once,) = experiments(load_results(model_runs[1:]))
    assert "all classes at once" in why_no_similarity(once)


def test_numbers_come_back_from_json(model_runs: list[Path]) -> None:
    (experiment,) = experiments(load_results(model_runs))
    measured = experiment_similarity(experiment, count=2)
    assert measured is not None
    assert measured.images == 2
    assert measured.methods[0].steps[0].previous is None
    scores = experiment.series[0].first.steps[1].old.with_background
    assert measured.methods[0].steps[1].old == pytest.approx(scores, abs=1e-4)
    assert Similarities.from_json(json.loads(json.dumps(measured.to_json()))) == measured
