"""STAR's counts, prototypes and losses against loops over every position."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.losses.references import bilinear
from tests.methods.toy import toy_config
from tiss.config import ModelConfig
from tiss.data.base import Batch
from tiss.engine.run import open_run
from tiss.methods.base import batch_norms, build_method
from tiss.methods.star import Star, missing
from tiss.models import Output, Resolution, build_model

WIDTH = 16  # of the tiny ViT's tokens
GRID, SIZE, PADDED = (3, 4), (20, 30), (24, 32)  # 8 pixels a patch, some of them padding
CENTRES = [(n, y, x) for n in range(2) for y in range(3) for x in range(4)]


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_batch(seed: int, classes: range) -> Batch:
    """Images and labels of `classes`, the background and pixels to ignore."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (2, 3, *SIZE), generator=generator, dtype=torch.uint8)
    label = torch.randint(classes.start, classes.stop, (2, *SIZE), generator=generator)
    label[torch.rand(label.shape, generator=generator) < 0.5] = 0
    label[:, 4, :16] = 255
    return Batch(image, label, ["a", "b"])


def centre(label: Tensor, n: int, y: int, x: int) -> int:
    """The label of the pixel at a patch's centre."""
    row, column = 8 * y + 4, 8 * x + 4
    return int(label[n, row, column]) if row < SIZE[0] and column < SIZE[1] else 255


def softplus(value: float) -> float:
    return math.log1p(math.exp(value))


def old_class(logits: np.ndarray) -> int:
    best = int(logits[1:].argmax()) + 1
    return best if logits[best] > 0.5 else 0


@pytest.fixture
def begun() -> Callable[..., tuple]:
    """A method that has begun a step of the toy scenario, with its scenario and model."""

    def make(setup: str = "overlapped", **settings) -> tuple:
        scenario = open_run(toy_config("star")).scenario
        method = build_method({"name": "star", **settings}, 3)
        assert isinstance(method, Star)
        model = build_model(ModelConfig(encoder="vit_micro_patch8"), scenario[0].classes, 32).eval()
        return method, model, [replace(step, setup=setup) for step in scenario]

    return make


def test_what_is_kept_of_a_class(begun) -> None:
    method, model, steps = begun()
    batches = [make_batch(seed, range(1, 3)) for seed in range(3)]
    method.begin(steps[0], model, seed=0)
    method.end(steps[0], model, lambda: batches)
    found: dict[int, list[np.ndarray]] = {0: [], 1: [], 2: []}
    with torch.no_grad():
        for batch in batches:
            features = model(batch.image, needs=("decoder",)).features[0].double().numpy()
            for n, y, x in CENTRES:
                if (value := centre(batch.label, n, y, x)) != 255:
                    found[value].append(features[n, :, y, x])
    assert method.memory["counts"].tolist() == [len(found[value]) for value in range(3)]
    for index, value in enumerate((1, 2)):
        lengths = np.array([np.linalg.norm(feature) for feature in found[value]])
        directions = np.array(found[value]) / lengths[:, None]
        prototype = directions.sum(0) / np.linalg.norm(directions.sum(0))
        noise = np.sqrt(((directions - prototype) ** 2).mean(0))
        close = {"rtol": 1e-5, "atol": 1e-6}
        np.testing.assert_allclose(method.memory["prototypes"][index], prototype, **close)
        np.testing.assert_allclose(method.memory["noise"][index], noise, **close)
        np.testing.assert_allclose(method.memory["norms"][index], [lengths.mean(), lengths.std()], **close)


@pytest.mark.parametrize("setup", ["overlapped", "disjoint"])
def test_the_proportions_of_the_complete_data(begun, setup: str) -> None:
    """Step 1 adds one class: what is replayed in it, and what is known after it."""
    method, model, steps = begun(setup)
    teacher = build_model(ModelConfig(encoder="vit_micro_patch8"), steps[0].classes, 32, seed=3).eval()
    teacher.head.biases[0].data[1] += 0.5  # class 1 and the background are seen, class 2 nowhere
    teacher.head.biases[0].data[2] -= 9.0
    method.begin(steps[0], model, seed=0)
    kept = {"prototypes": torch.eye(2, WIDTH), "noise": torch.zeros(2, WIDTH), "norms": torch.ones(2, 2)}
    method.load_state({**kept, "counts": torch.tensor([40.0, 30.0, 1.0])})
    method.begin(steps[1], model, seed=0)
    batches = [make_batch(seed, range(3, 4)) for seed in range(2)]
    method.prepare(model, teacher, lambda: batches)
    found, new = [0, 0, 0], 0
    with torch.no_grad():
        for batch in batches:
            logits = teacher(batch.image).logits.numpy()
            for n, y, x in CENTRES:
                value = centre(batch.label, n, y, x)
                found[old_class(logits[n, :, y, x])] += value == 0
                new += value == 3
    assert found[0] and found[1] and not found[2] and new
    before, positions = np.array([40.0, 30.0, 1.0]), 2 * len(CENTRES)
    _, owed, repeat, _ = method._replay(torch.device("cpu"))
    if setup == "overlapped":
        assert owed.tolist() == pytest.approx([max(30 - found[1], 0) / positions, 1 / positions])
        assert float(repeat) == pytest.approx(max(0.99 * 40 / found[0] - 0.5, 0))
        after = [0.99 * 40 + found[0] / 2, 30, 1, new]
    else:
        assert owed.tolist() == pytest.approx([30 / positions, 1 / positions])
        assert float(repeat) == pytest.approx(40 / found[0])
        after = [*(before + found), new]
    method.end(steps[1], model, lambda: batches)
    assert method.memory["counts"].tolist() == pytest.approx(after)
    assert {name: len(values) for name, values in method.memory.items()} == {
        "prototypes": 3, "noise": 3, "norms": 3, "counts": 4
    }  # fmt: skip
    for name, values in kept.items():  # what was kept of an old class stays as it was
        assert torch.equal(method.memory[name][:2], values)
    with torch.no_grad():
        outputs = [model(batch.image, needs=("decoder",)).features[0] for batch in batches]
    own = [
        features[n, :, y, x]
        for batch, features in zip(batches, outputs, strict=True)
        for n, y, x in CENTRES
        if centre(batch.label, n, y, x) == 3
    ]
    mean = torch.nn.functional.normalize(torch.stack(own), dim=1).sum(0)
    torch.testing.assert_close(method.memory["prototypes"][2], mean / mean.norm())


def test_nothing_is_owed_below_zero() -> None:
    """The step shows more of the background and of class 1 than all earlier images did."""
    counts, found = torch.tensor([10.0, 5.0, 30.0]), torch.tensor([80.0, 6.0, 0.0, 100.0])
    owed, repeat = missing(counts, found, 1, "overlapped")
    assert owed.tolist() == pytest.approx([0.0, 0.3]) and float(repeat) == 0.0


def test_what_a_later_step_trains() -> None:
    """One sigmoid per class; the earlier groups' rows and the batch norms stay, until the step ends."""
    scenario = open_run(toy_config("star")).scenario
    method = build_method("star", 3)
    model = build_model(ModelConfig(encoder="resnet_micro"), scenario[0].classes, 32)
    for step in scenario:
        method.begin(step, model, seed=0)
    fixed = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert {name for name in fixed if "head" in name} == {
        f"head.{kind}.{group}" for kind in ("rows", "biases") for group in (0, 1)
    }
    norms = sum(len(list(norm.parameters())) for norm in batch_norms(model))
    assert len(fixed) == 4 + norms and norms > 0
    assert model.rule == "sigmoid"


def at_step_1(begun, **settings) -> tuple[Star, Batch, Output, Output]:
    """A step with two old classes and one new one, all in float64."""
    method, model, steps = begun("disjoint", **settings)
    method.begin(steps[0], model, seed=0)
    method.begin(steps[1], model, seed=0)
    model.head.double()
    method.load_state(
        {
            "prototypes": torch.nn.functional.normalize(draw(1, 2, WIDTH), dim=1),
            "noise": draw(2, 2, WIDTH).abs() / 9,
            "norms": torch.tensor([[2.0, 0.1], [3.0, 0.2]], dtype=torch.float64),
            "counts": torch.tensor([30.0, 20.0, 10.0], dtype=torch.float64),
            "found": torch.tensor([12.0, 5.0, 1.0, 24.0], dtype=torch.float64),
        }
    )
    to = Resolution(SIZE, PADDED)
    output = Output(draw(3, 2, 4, *GRID).requires_grad_(), (draw(4, 2, WIDTH, *GRID).requires_grad_(),), to)
    teacher = Output(2 * draw(5, 2, 3, *GRID), (draw(6, 2, WIDTH, *GRID),), to)
    return method, make_batch(7, range(3, 4)), output, teacher


def test_the_losses(begun) -> None:
    method, batch, output, teacher = at_step_1(begun, positive=3.0, samples=5)
    torch.manual_seed(0)
    terms = {name: float(value.detach()) for name, value in method.losses(batch, output, teacher).items()}
    torch.manual_seed(0)
    drawn, _, _, _ = method._replay(torch.device("cpu"))
    logits, features = output.logits.detach().numpy(), output.features[0].detach().numpy()
    before, taught = teacher.features[0].numpy(), teacher.logits.numpy()
    rows, biases = (values[-1].detach().numpy() for values in method.model.head.growing())

    pixels = bilinear(logits, *PADDED)[:, 3, : SIZE[0], : SIZE[1]]
    own = 0.0
    for place, value in np.ndenumerate(batch.label.numpy()):
        z = float(pixels[place])
        own += {0: softplus(z), 3: 3 * softplus(-z), 255: 0.0}[int(value)] / pixels.size
    replayed = [
        np.mean([softplus(float(rows[0] @ one + biases[0])) for one in each]) for each in drawn.numpy()
    ]
    share, repeat = [20 / 24, 10 / 24], 30 / 12
    background, maintained, centres = [], [], np.zeros(WIDTH)
    for n, y, x in CENTRES:
        value, seen = centre(batch.label, n, y, x), old_class(taught[n, :, y, x])
        if value == 0 and seen == 0:
            background.append(softplus(float(logits[n, 3, y, x])))
        elif value == 0:
            maintained.append(np.mean((features[n, :, y, x] - before[n, :, y, x]) ** 2))
        elif value == 3:
            centres += features[n, :, y, x] / np.linalg.norm(features[n, :, y, x])
    assert background and maintained and centres.any()
    total = own + np.dot(share, replayed) + repeat * sum(background) / len(CENTRES)
    total /= 1 + sum(share) + repeat * len(background) / len(CENTRES)
    assert terms["binary"] == pytest.approx(total, rel=1e-10)
    assert terms["features"] == pytest.approx(5 * np.mean(maintained), rel=1e-10)
    prototypes = method.memory["prototypes"].numpy()
    distances = [np.linalg.norm(centres / np.linalg.norm(centres) - prototype) for prototype in prototypes]
    assert terms["discrimination"] == pytest.approx(0.05 / min(distances), rel=1e-6)


def test_what_each_loss_trains(begun) -> None:
    method, batch, output, teacher = at_step_1(begun)
    before = teacher.features[0].requires_grad_()
    terms = method.losses(batch, output, teacher)
    logits, features = output.logits, output.features[0]
    (to_logits,) = torch.autograd.grad(terms["binary"], logits, retain_graph=True)
    assert to_logits[:, 3].any() and not to_logits[:, :3].any()  # the old classes' logits are left alone
    (to_row,) = torch.autograd.grad(terms["binary"], method.model.head.rows[-1], retain_graph=True)
    assert to_row.any()  # drawn features reach the new class's row
    to_features, to_teacher = torch.autograd.grad(terms["features"], (features, before), allow_unused=True)
    assert to_teacher is None
    for n, y, x in CENTRES:
        old = centre(batch.label, n, y, x) == 0 and old_class(teacher.logits[n, :, y, x].numpy()) > 0
        assert bool(to_features[n, :, y, x].any()) == old


def test_drawn_features_have_the_statistics_that_were_kept(begun) -> None:
    method, *_ = at_step_1(begun, samples=20_000)
    torch.manual_seed(0)
    drawn, _, _, prototypes = method._replay(torch.device("cpu"))
    norms = method.memory["norms"]
    torch.testing.assert_close(drawn.mean(dim=1), norms[:, :1] * prototypes, atol=0.02, rtol=0)
    deviation = (
        norms.square().sum(1, keepdim=True) * method.memory["noise"].square()
        + (norms[:, 1:] * prototypes).square()
    ).sqrt()
    torch.testing.assert_close(drawn.std(dim=1), deviation, atol=0.02, rtol=0)


def test_a_class_that_is_nowhere_does_no_harm(begun) -> None:
    """No old class among the pixels, no new one, a class without images: all losses stay finite."""
    method, batch, output, teacher = at_step_1(begun)
    method.memory["prototypes"][1], method.memory["noise"][1], method.memory["norms"][1] = 0, 0, 0
    method.memory["counts"][:], method.memory["found"][:] = 0, 0
    batch = Batch(batch.image, torch.full_like(batch.label, 255), batch.ids)
    terms = method.losses(batch, output, teacher)
    assert {name: float(value.detach()) for name, value in terms.items()} == {
        "binary": 0.0, "features": 0.0, "discrimination": 0.0
    }  # fmt: skip
