"""The chunked path against the definition in float64, and the choice between the two."""

import dataclasses

import pytest
import torch

from tests.losses.cases import CASES, errors, evaluate, in_double
from tiss.errors import TissError
from tiss.losses import unbiased_cross_entropy, unbiased_distillation, unbiased_losses
from tiss.losses.chunked import Task, chunked
from tiss.losses.pixel import choose, plain
from tiss.models.contract import Resolution


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_float32_within_tolerance(name, channels_last):
    found = errors(chunked, CASES[name].make(), channels_last=channels_last)
    assert max(found["hard"], found["soft"]) < 1e-5
    assert found["gradient"] < 1e-4


@pytest.mark.parametrize("name", CASES)
def test_float64_is_the_definition(name):
    found = errors(chunked, in_double(CASES[name].make()))
    assert max(found.values()) < 1e-10


@pytest.mark.parametrize("budget", [1, 200])
def test_chunks_add_up(monkeypatch, budget):
    monkeypatch.setattr("tiss.losses.chunked.CHUNK_ELEMENTS", budget)
    found = errors(chunked, in_double(CASES["odd size"].make()))
    assert max(found.values()) < 1e-10


def test_gradcheck():
    task = in_double(CASES["no multiple of the patch"].make())
    logits = task.logits.clone().requires_grad_()
    labels = task.labels[:, :3, :4].contiguous()

    def both(z):
        hard, soft = chunked(
            Task(z, 4, 7, Resolution((3, 4), (3, 4)), labels, task.teacher, task.image_weights)
        )
        return hard + 2 * soft

    assert torch.autograd.gradcheck(both, logits)


def test_half_precision_in_half_precision_out():
    task = CASES["patch 16"].make(kind=torch.bfloat16)
    hard, _, gradient = evaluate(chunked, task)
    exact, _, reference = evaluate(plain, in_double(task))
    assert hard == pytest.approx(exact, rel=1e-5)
    assert float((gradient - reference).abs().max() / reference.abs().max()) < 1e-2


def test_autocast_does_not_lower_the_precision():
    task = CASES["patch 16"].make()
    exact = evaluate(plain, in_double(task))[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = unbiased_cross_entropy(
            task.logits, task.labels, task.split, to=task.to, image_weights=task.image_weights
        )
    assert float(loss) == pytest.approx(exact, rel=1e-6)


def test_losses_can_be_added_up_in_place():
    task = CASES["patch 16"].make()
    task.logits.requires_grad_()
    hard, soft = chunked(task)
    hard += soft
    hard.backward()
    assert task.logits.grad.isfinite().all()


def test_losses_together_equal_losses_apart():
    task = CASES["odd size"].make()
    together = unbiased_losses(task.logits, task.labels, task.teacher, to=task.to)
    apart = (
        unbiased_cross_entropy(task.logits, task.labels, task.split, to=task.to),
        unbiased_distillation(task.logits, task.teacher, to=task.to),
    )
    torch.testing.assert_close(together, apart)


@pytest.mark.parametrize(
    ("fused", "size", "expected"),
    [("auto", (32, 32), chunked), ("auto", (2, 2), plain), ("on", (2, 2), chunked), ("off", (32, 32), plain)],
)
def test_choice(fused, size, expected):
    task = CASES["patch 16"].make()
    task = dataclasses.replace(task, to=Resolution(size, size, fused))
    assert choose(task) is expected


def test_a_teacher_of_another_size_takes_the_plain_path_or_says_so():
    task = CASES["patch 16"].make()
    larger = torch.nn.functional.interpolate(task.teacher, (4, 4))
    assert choose(dataclasses.replace(task, teacher=larger)) is plain
    demanded = dataclasses.replace(task, teacher=larger, to=Resolution((32, 32), (32, 32), "on"))
    with pytest.raises(TissError, match=r"train\.fused on"):
        choose(demanded)
