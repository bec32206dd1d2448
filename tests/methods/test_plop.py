"""PLOP's verbs: thresholds over all training images, pseudo-labels, weights, and which maps are compared.

The terms themselves are held against references in tests/losses/test_plop.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

from tests.methods.toy import toy_config
from tiss.data.base import Batch
from tiss.data.loader import TrainLoader
from tiss.engine.progress import Reporter
from tiss.engine.run import open_run
from tiss.engine.session import Session
from tiss.losses import entropy_and_class, local_pod
from tiss.losses.plop import official_median
from tiss.methods import plop
from tiss.methods.plop import PLOP, POD, POD_LOGITS
from tiss.models import Output, SegmentationModel


class Bench:
    """Step 1 of the toy scenario, as far as the verbs before training go."""

    def __init__(self, method: Any = "plop", encoder: str = "vit_micro_patch8", batch: int = 3) -> None:
        run = open_run(toy_config(method, encoder, train={"batch": batch}))
        session = Session.start(run.config, run.scenario[0], reporter=Reporter())
        session.learn(run.scenario[0])
        assert isinstance(session.method, PLOP)
        self.step, self.method, self.student = run.scenario[1], session.method, session.model.eval()
        self.teacher: SegmentationModel = session.make_teacher()
        generator = torch.Generator().manual_seed(3)
        for rows in self.teacher.head.rows:  # far apart logits: every class is predicted somewhere
            rows.data = torch.randn(rows.shape, generator=generator)
        self.loader: TrainLoader = session.train_loader(self.step)
        self.method.begin(self.step, self.student, seed=0)
        self.method.prepare(self.student, self.teacher, self.loader.once)

    def outputs(self, batch: Batch) -> tuple[Output, Output]:
        needs = self.method.needs(self.student)
        with torch.no_grad():
            return self.student(batch.image, needs), self.teacher(batch.image, needs)


@pytest.mark.parametrize("official", [True, False])
def test_thresholds_over_all_training_images(official: bool) -> None:
    bench = Bench({"name": "plop", "official": official})
    assert len(bench.step.train) % 3, "the last images do not fill a batch: they must count too"
    pixels: list[list[float]] = [[], [], []]
    for batch in bench.loader.once():
        teacher = bench.outputs(batch)[1]
        every = entropy_and_class(teacher.logits, teacher.resolution, bench.step.seen if official else None)
        entropy, predicted = (one[batch.label == 0] for one in every)
        for channel in range(3):
            pixels[channel] += entropy[predicted == channel].tolist()
    assert len(bench.method.thresholds) == bench.step.old == 3
    assert sum(map(bool, pixels)) > 1
    for found, chosen in zip(bench.method.thresholds.tolist(), pixels, strict=True):
        values = torch.tensor(chosen or [0.0])
        median = (
            official_median(torch.histc(values, 100, 0, 1).int().tolist()) if official else values.median()
        )
        assert found == pytest.approx(max(float(median), 0.001), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("official", [False, True])
def test_targets_and_weights(official: bool) -> None:
    bench = Bench({"name": "plop", "official": official})
    batch = next(bench.loader.epoch(0))
    batch.label[0] = 3  # an image without any background
    teacher = bench.outputs(batch)[1]
    entropy, predicted = entropy_and_class(teacher.logits, teacher.resolution, 4 if official else None)
    background = batch.label == 0
    limit = entropy[background].median()  # half of the pixels are surer than that
    bench.method.thresholds = torch.full((3,), float(limit))
    sure = background & (entropy < limit)
    expected = torch.where(sure, predicted, 255).where(background, batch.label)
    assert torch.equal(bench.method.targets(batch, teacher), expected)
    weights = sure.sum((1, 2)) / background.sum((1, 2))
    weights[0] = 0.0 if official else 1.0
    torch.testing.assert_close(bench.method.weights, weights)


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


def test_factors_follow_from_the_data_set_and_maps_from_the_architecture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    batch = next(bench.loader.epoch(0))
    outputs = bench.outputs(batch)
    bench.method.targets(batch, outputs[1])
    assert bench.method.needs(bench.student) == (2,)  # every third block, and the logits
    for data in ("voc", "ade20k", "cityscapes", "mine"):
        bench.step.train.dataset.name = data.replace("scapes", "scapes-domains")
        bench.method.settings = replace(bench.method.settings, pod_logits=None)
        features, logits = POD.get(data, 0.01), POD_LOGITS.get(data, 0.0005)
        for given, expected in ((None, logits), (0.25, 0.25)):
            bench.method.settings = replace(bench.method.settings, pod_logits=given)
            pod = Mock(return_value=torch.tensor(0.0))
            monkeypatch.setattr(plop, "local_pod", pod)
            bench.method.losses(batch, *outputs)
            assert pod.call_args.args[4:] == (features, expected)
    deeplab = Bench(encoder="resnet_micro")
    assert deeplab.method.needs(deeplab.student) == ("stage1", "stage2", "stage3", "stage4", "decoder")


def test_ploplong_compares_directions() -> None:
    bench = Bench("ploplong")
    assert bench.student.architecture.head == "cosine"
    batch = next(bench.loader.epoch(0))
    student, teacher = bench.outputs(batch)
    batch = replace(batch, label=bench.method.targets(batch, teacher))
    larger = replace(student, features=tuple(3 * feature for feature in student.features))
    pods = [bench.method.losses(batch, output, teacher)["pod"] for output in (larger, student)]
    torch.testing.assert_close(*pods)
