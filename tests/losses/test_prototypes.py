"""SDR's terms against loops and numeric gradients."""

import math

import numpy as np
import pytest
import torch

from tiss.losses import (
    Prototypes,
    class_sums,
    feature_sparsity,
    prototype_attraction,
    prototype_labels,
    prototype_matching,
    prototype_repulsion,
)

CLASSES = 6


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(4)
    features = torch.rand(2, 4, 3, 5, generator=generator, dtype=torch.float64) + 0.1
    labels = torch.randint(0, 5, (2, 3, 5), generator=generator)  # class 5 is absent
    labels[0, 0, :2] = 255
    mean = torch.rand(CLASSES, 4, generator=generator, dtype=torch.float64)
    count = torch.tensor([3.0, 1, 2, 0, 5, 1], dtype=torch.float64)  # class 3 has no prototype yet
    return features, labels, Prototypes(mean, count)


def by_class(features, labels):
    """{class: list of its features}, in loops."""
    found = {}
    for n, y, x in np.ndindex(*labels.shape):
        if labels[n, y, x] != 255:
            found.setdefault(int(labels[n, y, x]), []).append(features[n, :, y, x].numpy())
    return {c: np.array(rows) for c, rows in found.items()}


def test_sums_and_counts(case):
    features, labels, _ = case
    sums, counts = class_sums(features, labels, CLASSES)
    for c in range(CLASSES):
        rows = by_class(features, labels).get(c, np.zeros((0, 4)))
        assert counts[c] == len(rows)
        np.testing.assert_allclose(sums[c].numpy(), rows.sum(0), rtol=1e-12)


def test_running_mean_is_the_mean_over_all_batches():
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(6, 4, 3, 3, generator=generator)
    labels = torch.randint(0, 3, (6, 3, 3), generator=generator)
    running = Prototypes.empty(3, 4)
    for part in range(3):
        chosen = slice(2 * part, 2 * part + 2)
        running = running.update(*class_sums(features[chosen], labels[chosen], 3))
    for c, rows in by_class(features, labels).items():
        np.testing.assert_allclose(running.mean[c].numpy(), rows.mean(0), rtol=1e-5, atol=1e-6)
        assert running.count[c] == len(rows)


TERMS = {
    "matching": lambda features, labels, known: prototype_matching(features, labels, known, 4),
    "attraction": prototype_attraction,
    "repulsion": lambda features, labels, _: prototype_repulsion(features, labels, CLASSES),
    "sparsity": lambda features, labels, _: feature_sparsity(features, labels, CLASSES),
}


@pytest.mark.parametrize("term", TERMS)
def test_each_term_against_loops_and_its_gradient(case, term):
    features, labels, known = case
    rows, mean = by_class(features, labels), known.mean.numpy()
    means = [own.mean(0) for own in rows.values()]
    expected = {
        "matching": [np.mean((rows[c].mean(0) - mean[c]) ** 2) for c in (1, 2) if c in rows],
        "attraction": [np.mean((rows[c] - mean[c]) ** 2) for c in (0, 1, 2, 4) if c in rows],
        "repulsion": [1 / math.dist(a, b) for i, a in enumerate(means) for b in means[:i]],
        "sparsity": [np.exp(f / own.max()).sum() / f.sum() * own.max() for own in rows.values() for f in own],
    }
    assert float(TERMS[term](*case)) == pytest.approx(np.mean(expected[term]), rel=1e-12)
    assert torch.autograd.gradcheck(lambda f: TERMS[term](f, labels, known), features.requires_grad_())


def test_nothing_present_is_zero_with_finite_gradients(case):
    features, labels, prototypes = case
    features.requires_grad_()
    nothing = torch.full_like(labels, 255)
    total = sum(term(features, nothing, prototypes) for term in TERMS.values())
    total = total + prototype_repulsion(features, torch.ones_like(labels), CLASSES)
    total.backward()
    assert float(total.detach()) == 0.0
    assert torch.isfinite(features.grad).all()


def test_background_takes_the_old_models_class():
    labels = torch.tensor([[[0, 7], [255, 0]]])
    teacher = torch.zeros(1, 3, 2, 2)
    teacher[0, 2, 0, 0] = teacher[0, 1, 1, 0] = 5
    assert prototype_labels(labels, (2, 2), teacher).tolist() == [[[2, 7], [255, 0]]]
    assert prototype_labels(labels, (2, 2)).tolist() == labels.tolist()
