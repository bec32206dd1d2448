"""Local POD against golden values, loops and numeric gradients."""

import math

import numpy as np
import pytest
import torch

from tests.losses import references
from tiss.losses import local_pod


@pytest.mark.parametrize("case", [0, 1])
def test_golden_value_and_gradients(case):
    with np.load(references.FIXTURES / f"plop_pod_{case}.npz") as golden:
        count = int(golden["n_maps"])
        maps = [torch.from_numpy(golden[f"new_{i}"]).requires_grad_() for i in range(count)]
        teacher = [torch.from_numpy(golden[f"old_{i}"]) for i in range(count)]
        loss = local_pod(
            maps,
            teacher,
            int(golden["old"]),
            int(golden["new"]),
            float(golden["pod_factor"]),
            float(golden["pod_logits_factor"]),
        )
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
            for i in range(scale):
                for j in range(scale):
                    cell = channel[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
                    values += [*cell.mean(1), *cell.mean(0)]
    return np.array(values)


def test_against_loops_on_a_size_that_does_not_divide():
    generator = torch.Generator().manual_seed(1)
    maps = [torch.randn(2, c, 7, 9, generator=generator, dtype=torch.float64) for c in (3, 5)]
    teacher = [torch.randn(2, c, 7, 9, generator=generator, dtype=torch.float64) for c in (3, 4)]
    loss = local_pod(maps, teacher, old_classes=4, new_classes=1, factor=0.1, logits_factor=0.2)
    folded = maps[1][:, :4].clone()
    folded[:, 0] += maps[1][:, 4]
    expected = 0.0
    for weight, a, b in ((0.1, maps[0], teacher[0]), (0.2, folded, teacher[1])):
        for n in range(2):
            difference = embedding(a[n].numpy()) - embedding(b[n].numpy())
            expected += weight * math.sqrt((difference**2).sum()) / 2
    assert float(loss) == pytest.approx(expected / 2 * math.sqrt(5), rel=1e-12)


@pytest.mark.parametrize("normalise", [False, True])
def test_gradcheck(normalise):
    generator = torch.Generator().manual_seed(2)
    maps = [
        torch.randn(1, c, 4, 5, generator=generator, dtype=torch.float64).requires_grad_() for c in (2, 3)
    ]
    teacher = [torch.randn(1, 2, 4, 5, generator=generator, dtype=torch.float64) for _ in range(2)]
    assert torch.autograd.gradcheck(
        lambda *m: local_pod(m, teacher, 2, 1, 1.0, 1.0, normalise=normalise), maps
    )


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
