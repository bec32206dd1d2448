"""Local POD, entropies, exact medians and pseudo-labels against golden values, loops and numeric gradients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.losses import references
from tiss.losses import EntropyThresholds, entropy_and_class, local_pod, pseudo_labels
from tiss.losses.plop import official_median
from tiss.models import Resolution


@pytest.mark.parametrize("case", [0, 1])
def test_golden_value_and_gradients(case):
    with np.load(references.FIXTURES / f"plop_pod_{case}.npz") as golden:
        count = int(golden["n_maps"])
        maps = [torch.from_numpy(golden[f"new_{i}"]).requires_grad_() for i in range(count)]
        teacher = [torch.from_numpy(golden[f"old_{i}"]) for i in range(count)]
        factors = [float(golden[name]) for name in ("pod_factor", "pod_logits_factor")]
        loss = local_pod(maps, teacher, int(golden["old"]), int(golden["new"]), *factors)
        assert float(loss.detach()) == pytest.approx(float(golden["loss"]), rel=1e-6)
        for i, gradient in enumerate(torch.autograd.grad(loss, maps)):
            expected = golden[f"grad_{i}"]
            np.testing.assert_allclose(gradient.numpy(), expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def embedding(image):
    """Row and column means of all cells of one image, D × H × W, in loops."""
    height, width = image.shape[1:]
    values = []
    for channel in image**2:
        for scale in (1, 2, 4):
            rows, columns = height // scale, width // scale
            for i in range(scale if rows and columns else 0):
                for j in range(scale):
                    cell = channel[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
                    values += [*cell.mean(1), *cell.mean(0)]
    return np.array(values)


@pytest.mark.parametrize("size", [(7, 9), (3, 9), (9, 1)])
def test_against_loops_on_a_size_that_does_not_divide(size):
    generator = torch.Generator().manual_seed(1)
    maps = [torch.randn(2, c, *size, generator=generator, dtype=torch.float64) for c in (3, 5)]
    teacher = [torch.randn(2, c, *size, generator=generator, dtype=torch.float64) for c in (3, 4)]
    loss = local_pod(maps, teacher, old_classes=4, new_classes=1, factor=0.1, logits_factor=0.2)
    folded = maps[1][:, :4].clone()
    folded[:, 0] += maps[1][:, 4]
    expected = 0.0
    for weight, a, b in ((0.1, maps[0], teacher[0]), (0.2, folded, teacher[1])):
        for n in range(2):
            difference = embedding(a[n].numpy()) - embedding(b[n].numpy())
            expected += weight * math.sqrt((difference**2).sum()) / 2
    assert float(loss) == pytest.approx(expected / 2 * math.sqrt(5), rel=1e-12)


def test_equal_maps_give_zero_with_a_finite_gradient():
    maps = [torch.ones(1, 2, 4, 4).requires_grad_()]
    loss = local_pod(maps, [torch.ones(1, 2, 4, 4)], 2, 1)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert torch.isfinite(maps[0].grad).all()


def test_normalised_ignores_the_teachers_scale():
    generator = torch.Generator().manual_seed(3)
    maps = [torch.randn(2, 3, 8, 8, generator=generator, dtype=torch.float64)]
    teacher = [torch.randn(2, 3, 8, 8, generator=generator, dtype=torch.float64)]
    losses = [float(local_pod(maps, [teacher[0] * s], 3, 1, normalise=True)) for s in (1, 7)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


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
