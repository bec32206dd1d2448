from __future__ import annotations

import pickle

import torch

from tests.data.fake import random_data
from tiss.data.augment import AugmentSettings
from tiss.data.base import Sample
from tiss.data.loader import TestLoader, TrainLoader
from tiss.data.source import FileSource, limit
from tiss.scenarios import load_scenario


def test_large_pictures_come_down_without_aliasing_and_labels_by_nearest() -> None:
    stripes = (torch.arange(640) % 2 * 255).to(torch.uint8).expand(3, 320, 640).contiguous()
    label = torch.zeros(320, 640, dtype=torch.uint8)
    label[:, 320:] = 200
    small = limit(Sample(stripes, label, "s"), 64)
    assert small.image.shape == (3, 64, 128)
    assert small.image.dtype == torch.uint8
    assert (small.image.int() - 128).abs().max() <= 20  # a plain gather would give stripes of 0 and 255
    assert small.label.unique().tolist() == [0, 200]
    assert (small.label[:, 64:] == 200).all()


def test_small_pictures_stay_as_they_are() -> None:
    sample = Sample(torch.zeros(3, 9, 20, dtype=torch.uint8), torch.zeros(9, 20, dtype=torch.uint8), "s")
    assert limit(sample, 9) is sample
    assert limit(sample, None) is sample


def test_a_source_can_travel_to_a_spawned_process() -> None:
    files = FileSource(random_data(0), "train", 16)
    there = pickle.loads(pickle.dumps(files))
    assert torch.equal(files.read("train000")[0], there.read("train000")[0])


def test_resized_batches_are_the_same_from_workers_and_memory() -> None:
    step = load_scenario(random_data(0, side=(40, 90)), task="2-1")[0]
    settings = AugmentSettings(24, resize=24)
    loaders = [
        TrainLoader(step.train, settings, batch=4, seed=0, step=0, kind=kind, workers=1)  # type: ignore[arg-type]
        for kind in ("memory", "workers")
    ] + [TestLoader(step.test, 24, batch=4, kind=kind, workers=1) for kind in ("memory", "workers")]  # type: ignore[arg-type,list-item]
    first, second, third, fourth = (
        list(loader.epoch(0)) if isinstance(loader, TrainLoader) else list(loader) for loader in loaders
    )
    for a, b in [*zip(first, second, strict=True), *zip(third, fourth, strict=True)]:
        assert torch.equal(a.image, b.image)
        assert torch.equal(a.label, b.label)
    for loader in loaders:
        loader.close()
