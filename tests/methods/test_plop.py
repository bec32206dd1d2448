"""PLOP against references written from its definition, in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.methods.toy import toy_config
from tiss.data.base import Batch
from tiss.data.loader import TrainLoader
from tiss.engine.progress import Reporter
from tiss.engine.run import open_run
from tiss.engine.session import Session
from tiss.losses import local_pod
from tiss.methods.plop import FACTORS, PLOP
from tiss.models import Output, Resolution, SegmentationModel

EXACT = {"name": "plop", "official": False}


class Bench:
    """Step 1 of the toy scenario, as far as the verbs before training go."""

    def __init__(self, method: Any = "plop", encoder: str = "vit_micro_patch8", batch: int = 3) -> None:
        run = open_run(toy_config(method, encoder, train={"batch": batch}))
        session = Session.start(run.config, run.scenario[0], reporter=Reporter())
        session.learn(run.scenario[0])
        assert isinstance(session.method, PLOP)
        self.step, self.method, self.student = run.scenario[1], session.method, session.model.eval()
        self.teacher: SegmentationModel = session.make_teacher()
        sharpen(self.teacher)
        self.loader: TrainLoader = session.train_loader(self.step)
        self.method.begin(self.step, self.student, seed=0)
        self.method.prepare(self.student, self.teacher, self.loader.once)

    def outputs(self, batch: Batch) -> tuple[Output, Output]:
        needs = self.method.needs(self.student)
        with torch.no_grad():
            return self.student(batch.image, needs), self.teacher(batch.image, needs)


@torch.no_grad()
def sharpen(model: SegmentationModel) -> None:
    """Far apart logits, so that every class is predicted somewhere and entropies spread over [0, 1]."""
    generator = torch.Generator().manual_seed(3)
    for rows in model.head.rows:
        rows.copy_(torch.randn(rows.shape, generator=generator))


def entropies(logits: Tensor, to: Resolution) -> tuple[np.ndarray, np.ndarray]:
    """−Σ p log p / log(old) and the class of every pixel, in float64."""
    pixels = F.interpolate(logits.double(), to.padded, mode="bilinear", align_corners=False).numpy()
    pixels = pixels[..., : to.size[0], : to.size[1]]
    probability = np.exp(pixels - pixels.max(1, keepdims=True))
    probability /= probability.sum(1, keepdims=True)
    entropy = -(probability * np.log(np.maximum(probability, 1e-300))).sum(1)
    return entropy / math.log(logits.shape[1]), probability.argmax(1)


def collected(bench: Bench) -> tuple[np.ndarray, np.ndarray]:
    """Entropy and class of all background pixels of the step's training images."""
    found_entropy, found_class = [], []
    for batch in bench.loader.once():
        _, teacher = bench.outputs(batch)
        entropy, predicted = entropies(teacher.logits, teacher.resolution)
        background = batch.label.numpy() == 0
        found_entropy.append(entropy[background])
        found_class.append(predicted[background])
    return np.concatenate(found_entropy), np.concatenate(found_class)


def published(chosen: np.ndarray) -> float:
    """The published search for the median: it sums bin indices."""
    histogram = np.bincount((chosen * 100).astype(int), minlength=100)
    running, half = 0, len(chosen) / 2
    for index, content in enumerate(histogram):
        if running <= half <= running + content:
            break
        running += index
    with np.errstate(divide="ignore"):  # the published quotient may be infinite
        return index / 100 + (half - running) / content / 100


def exact(chosen: np.ndarray) -> float:
    return float(np.sort(chosen)[(len(chosen) - 1) // 2])


@pytest.mark.parametrize(("settings", "median"), [("plop", published), (EXACT, exact)])
def test_thresholds_over_all_training_images(settings: Any, median: Callable[[np.ndarray], float]) -> None:
    bench = Bench(settings)
    assert len(bench.step.train) % 3, "the last images do not fill a batch: they must count too"
    entropy, predicted = collected(bench)
    if median is published:
        entropy = entropy / 3 / math.log(bench.step.seen)  # mean over the channels, and normalised twice
    assert len(bench.method.thresholds) == bench.step.old == 3
    assert len(set(predicted)) > 1
    for channel, found in enumerate(bench.method.thresholds.tolist()):
        chosen = entropy[predicted == channel]
        expected = max(median(chosen) if len(chosen) else 0.0, 0.001)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("official", [False, True])
def test_targets_and_weights(official: bool) -> None:
    bench = Bench({"name": "plop", "official": official})
    bench.method.thresholds = torch.tensor([0.1, 0.9, 0.5]) / (3 * math.log(4) if official else 1)
    batch = next(bench.loader.epoch(0))
    batch.label[0] = 3  # an image without any background
    _, teacher = bench.outputs(batch)
    found = bench.method.targets(batch, teacher)
    weights = bench.method.weights
    entropy, predicted = entropies(teacher.logits, teacher.resolution)
    limits = np.array([0.1, 0.9, 0.5])
    for image in range(len(batch.ids)):
        taken = background = 0
        for place in np.ndindex(*batch.label.shape[1:]):
            given, got = int(batch.label[(image, *place)]), int(found[(image, *place)])
            if given != 0:
                assert got == given
                continue
            background += 1
            channel = predicted[(image, *place)]
            if abs(entropy[(image, *place)] - limits[channel]) > 1e-5:  # float32 may tip over what is nearer
                assert got == (channel if entropy[(image, *place)] < limits[channel] else 255)
            taken += got != 255
        empty = 0.0 if official else 1.0
        assert float(weights[image]) == pytest.approx(taken / background if background else empty)


def test_losses_are_weighted_cross_entropy_and_pod() -> None:
    bench = Bench()
    batch = next(bench.loader.epoch(0))
    student, teacher = bench.outputs(batch)
    batch = replace(batch, label=bench.method.targets(batch, teacher))
    terms = bench.method.losses(batch, student, teacher)
    assert set(terms) == {"cross_entropy", "pod"}
    pixels = F.interpolate(student.logits, batch.label.shape[-2:], mode="bilinear", align_corners=False)
    each = F.cross_entropy(pixels, batch.label, ignore_index=255, reduction="none").mean((1, 2))
    torch.testing.assert_close(terms["cross_entropy"], (each * bench.method.weights).mean())
    maps = ([*student.features, student.logits], [*teacher.features, teacher.logits])
    torch.testing.assert_close(terms["pod"], local_pod(*maps, 3, 1, 0.01, 0.0005))


@pytest.mark.parametrize("data", ["voc", "ade20k", "cityscapes", "mine"])
def test_factors_follow_from_the_data_set(data: str) -> None:
    bench = Bench()
    bench.step.train.dataset.name = data
    expected = FACTORS.get(data, (0.01, 0.0005))
    assert bench.method._factors() == expected
    bench.method.settings = replace(bench.method.settings, pod_logits=0.25)
    assert bench.method._factors() == (expected[0], 0.25)


def test_maps_that_are_compared() -> None:
    assert Bench().method.needs(Bench().student) == (2,)  # every third block, and the logits
    deeplab = Bench(encoder="resnet_micro")
    assert deeplab.method.needs(deeplab.student) == ("stage1", "stage2", "stage3", "stage4", "decoder")


def test_ploplong_compares_directions() -> None:
    bench = Bench("ploplong")
    assert bench.student.architecture.head == "cosine"
    batch = next(bench.loader.epoch(0))
    student, teacher = bench.outputs(batch)
    batch = replace(batch, label=bench.method.targets(batch, teacher))
    larger = replace(student, features=tuple(3 * feature for feature in student.features))
    torch.testing.assert_close(
        bench.method.losses(batch, larger, teacher)["pod"],
        bench.method.losses(batch, student, teacher)["pod"],
    )
