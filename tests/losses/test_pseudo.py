"""Entropy, exact medians and pseudo-labels against numpy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.losses import references
from tiss.losses import EntropyThresholds, entropy_and_class, pseudo_labels
from tiss.losses.pseudo import official_median
from tiss.models.contract import Resolution


def test_entropy_against_loops():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 4, 3, 3, generator=generator, dtype=torch.float64) * 3
    pixels = references.bilinear(logits.numpy(), 8, 6)[..., :7, :6]
    entropy, predicted = entropy_and_class(logits, Resolution((7, 6), (8, 6)))
    published, _ = entropy_and_class(logits, Resolution((7, 6), (8, 6)), official_classes=6)
    for n, y, x in np.ndindex(2, 7, 6):
        probability = references.softmax(pixels[n, :, y, x])
        value = -sum(p * math.log(p) for p in probability)
        assert float(entropy[n, y, x]) == pytest.approx(value / math.log(4), rel=1e-10)
        assert float(published[n, y, x]) == pytest.approx(value / 4 / math.log(4) / math.log(6), rel=1e-10)
        assert int(predicted[n, y, x]) == int(np.argmax(probability))


def thresholds_of(values, classes, mask, parts, **options):
    """Runs all passes with the pixels dealt out to `parts` processes, whose counts are then added up."""
    workers = [EntropyThresholds(3, **options) for _ in range(parts)]
    for _ in range(workers[0].passes):
        for index, worker in enumerate(workers):
            worker.add(values[index::parts], classes[index::parts], mask[index::parts])
        total = sum(worker.counts for worker in workers)
        for worker in workers:
            worker.counts = total.clone()
            worker.finish()
    assert all(torch.equal(worker.values, workers[0].values) for worker in workers)
    return workers[0].values


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 3), st.integers(0, 2**31), st.sampled_from([1.0, 0.05, 0.003]))
def test_medians_are_exact_across_processes(count, parts, seed, spread):
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(count, generator=generator) * spread
    classes = torch.randint(0, 2, (count,), generator=generator)  # class 2 is never predicted
    mask = torch.rand(count, generator=generator) < 0.8
    found = thresholds_of(values, classes, mask, parts)
    for c in range(3):
        chosen = values[mask & (classes == c)]
        median = float(chosen.median()) if len(chosen) else 0.0  # torch's: the lower of the two in the middle
        assert float(found[c]) == max(median, float(np.float32(0.001)))


def test_official_sums_bin_indices():
    assert official_median([10]) == 0.5
    assert official_median([1, 1, 8]) == pytest.approx(2 / 3 + (5 - 1) / 8 / 3)  # the sum so far is 0 + 1
    assert official_median([0, 0, 0, 0]) == 0.0
    values = torch.tensor([0.005, 0.015, 0.025, 0.025, 0.025, 0.025])
    zeros = torch.zeros(6, dtype=torch.long)
    found = thresholds_of(values, zeros, torch.ones(6, dtype=torch.bool), 1, official=True)
    assert float(found[0]) == pytest.approx(0.02 + (3 - 1) / 4 / 100)
    assert float(found[1]) == pytest.approx(0.001)


def test_pseudo_labels_and_weights():
    labels = torch.tensor([[[0, 0], [255, 4]], [[4, 4], [4, 4]]])
    predicted = torch.tensor([[[2, 0], [1, 1]], [[1, 1], [1, 1]]])
    entropy = torch.tensor([[[0.2, 0.2], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    thresholds = torch.tensor([0.1, 0.5, 0.5])
    filled, weights = pseudo_labels(labels, entropy, predicted, thresholds)
    assert filled.tolist() == [[[2, 255], [255, 4]], [[4, 4], [4, 4]]]
    assert weights.tolist() == [0.5, 1.0]
    assert pseudo_labels(labels, entropy, predicted, thresholds, official=True)[1].tolist() == [0.5, 0.0]
    assert filled.dtype == labels.dtype
