"""Closed-form heads: against plain discriminant analysis in float64, and as identities of sums."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.methods.toy import toy_config
from tiss.engine.progress import Reporter
from tiss.engine.run import open_run, run_experiment
from tiss.engine.session import Session
from tiss.errors import TissError
from tiss.files import read_tensors, write_tensors
from tiss.methods.analytic import patch_shares, sampled
from tiss.methods.discriminant import ABSENT, Sums, pack, quantize, solve, unpack, with_own_head
from tiss.models import from_pretrained
from tiss.user.export import export_model

WIDTH, RIDGE = 6, 1e-3


def identity(features: Tensor) -> Tensor:
    return features


def blobs(classes: list[int], each: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features around one mean per class, and the classes."""
    generator = torch.Generator().manual_seed(seed)
    means = 3 * torch.randn(10, WIDTH, generator=torch.Generator().manual_seed(0))
    label = torch.tensor(classes).repeat_interleave(each)
    return means[label] + torch.randn(len(label), WIDTH, generator=generator), label


def sums_of(features: Tensor, label: Tensor, labelled: list[int], classes: int) -> Sums:
    """The sums of one step; patches of classes that it does not label are unlabelled."""
    known = torch.isin(label, torch.tensor(labelled))
    hot = F.one_hot(label, classes).float() * known[:, None]
    patches, scales = quantize(features[~known])
    flags = torch.zeros(1, classes, dtype=torch.uint8)
    flags[0, labelled] = 1
    sums = replace(
        Sums.empty(WIDTH, WIDTH),
        scatter=pack((features.double().T @ features.double())[None]),
        counts=hot.double().sum(dim=0),
        sums=hot.T @ features,
        open_sum=features[~known].sum(dim=0),
        open_counts=(~known).sum()[None].double(),
        labelled=flags,
        patches=patches,
        scales=scales,
        weights=torch.ones(len(patches)),
        steps=torch.zeros(len(patches), dtype=torch.int16),
        own_rows=torch.zeros(classes, WIDTH),
        own_biases=torch.zeros(classes),
    )
    return with_own_head(sums, identity, RIDGE)


def test_a_head_of_parts_is_the_mean_of_the_heads_on_each() -> None:
    features, label = blobs([1, 2, 3], 200, seed=1)
    sums = sums_of(features, label, [1, 2, 3], 4)
    halves = torch.stack([half.double().T @ half.double() for half in features.chunk(2, dim=1)])
    rows, biases = solve(replace(sums, scatter=pack(halves)), identity, RIDGE, shared=False)
    logits = torch.zeros(len(features), 3)
    for part in features.chunk(2, dim=1):
        alone, bias = solve(narrow_sums(part, label), identity, RIDGE, shared=False)
        logits += (part @ alone.T + bias)[:, 1:] / 2
    torch.testing.assert_close((features @ rows.T + biases)[:, 1:], logits, rtol=1e-4, atol=1e-3)


def narrow_sums(features: Tensor, label: Tensor) -> Sums:
    """Sums of labelled patches alone, of any width."""
    hot, width = F.one_hot(label, 4).float(), features.shape[1]
    empty = Sums.empty(width, width).grown(4)
    return replace(
        empty,
        scatter=pack((features.double().T @ features.double())[None]),
        counts=hot.double().sum(dim=0),
        sums=hot.T @ features,
        open_counts=torch.zeros(1, dtype=torch.float64),
        labelled=torch.ones(1, 4, dtype=torch.uint8),
    )


def test_the_head_is_the_linear_discriminant() -> None:
    """Within-class covariance, its inverse and priors, computed the plain way."""
    features, label = blobs([1, 2, 3], 200, seed=1)
    rows, biases = solve(sums_of(features, label, [1, 2, 3], 4), identity, RIDGE, shared=False)
    x = features.double()
    means = torch.stack([x[label == c].mean(dim=0) for c in (1, 2, 3)])
    within = sum((x[label == c] - means[c - 1]).T @ (x[label == c] - means[c - 1]) for c in (1, 2, 3)) / len(
        x
    )
    assert isinstance(within, Tensor)
    total = (x - x.mean(dim=0)).T @ (x - x.mean(dim=0)) / len(x)
    within.diagonal().add_(RIDGE * total.diagonal().mean())
    expected = means @ within.inverse()
    bias = torch.log(torch.tensor(1 / 3)) - 0.5 * (expected * means).sum(dim=1)
    logits = x @ expected.T + bias
    found = x @ rows[1:].double().T + biases[1:]
    difference = found - logits
    torch.testing.assert_close(difference, difference[:, :1].expand_as(difference), atol=2e-3, rtol=0)
    assert biases[0] == ABSENT
    assert (found.argmax(dim=1) + 1 == label).float().mean() > 0.95


def test_steps_add_up_to_all_images_at_once_in_any_order() -> None:
    one, two = blobs([1, 2], 150, seed=1), blobs([3], 60, seed=2)
    parts = [sums_of(*one, [1, 2], 4), sums_of(*two, [3], 4)]
    both = [torch.cat(pair) for pair in zip(one, two, strict=True)]
    joint = solve(sums_of(*both, [1, 2, 3], 4), identity, RIDGE, shared=False)
    for first, second in (parts, parts[::-1]):
        for found, expected in zip(solve(first.added(second), identity, RIDGE, False), joint, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_class_hidden_in_the_earlier_background_is_found_there() -> None:
    """Most images of class 3 were unlabelled background; without sharing out, that background takes the class."""
    base = blobs([1, 2, 3, 4, 5], 300, seed=1)  # nobody ever labels 4 and 5: they stay background
    later = blobs([1, 2, 3, 4, 5], 60, seed=2)
    sums = sums_of(*base, [1, 2], 6).added(sums_of(*later, [3], 6))
    features, label = blobs([1, 2, 3], 200, seed=3)
    right = {}
    for shared in (False, True):
        rows, biases = solve(sums, identity, RIDGE, shared)
        right[shared] = ((features @ rows.T + biases).argmax(dim=1) == label)[label == 3].float().mean()
    assert right[False] < 0.2
    assert right[True] > 0.9


def test_a_class_that_was_all_of_the_earlier_background_is_found_there() -> None:
    """What step 0 left unlabelled is class 3 alone; the later step shows the old classes, and no other."""
    sums = sums_of(*blobs([1, 2, 3], 300, seed=1), [1, 2], 4).added(
        sums_of(*blobs([1, 2, 3], 20, seed=2), [3], 4)
    )
    rows, biases = solve(sums, identity, RIDGE)
    features, label = blobs([1, 2, 3], 200, seed=3)
    right = (features @ rows.T + biases).argmax(dim=1) == label
    assert all(right[label == channel].float().mean() > 0.95 for channel in (1, 2, 3))


def test_an_old_class_in_later_images_that_look_different_stays_itself() -> None:
    """All of the later images is shifted; they show class 2 unlabelled, and were no background of class 2 ever."""
    shift = torch.zeros(WIDTH).index_fill(0, torch.tensor(0), 6.0)
    features, label = blobs([2, 3, 4], 60, seed=2)
    sums = sums_of(*blobs([1, 2, 4], 100, seed=1), [1, 2], 5).added(sums_of(features + shift, label, [3], 5))
    rows, biases = solve(sums, identity, RIDGE)
    found = ((features + shift) @ rows.T + biases).argmax(dim=1)
    assert (found[label == 2] == 2).float().mean() > 0.8


def test_a_class_of_three_patches_is_solved_and_one_of_none_never_predicted() -> None:
    sums = sums_of(*blobs([1, 2], 100, seed=1), [1, 2], 5).added(sums_of(*blobs([3], 3, seed=2), [3], 5))
    rows, biases = solve(sums, identity, RIDGE)
    assert torch.isfinite(rows).all() and biases[4] == ABSENT
    features, label = blobs([3], 50, seed=3)
    assert ((features @ rows.T + biases).argmax(dim=1) == label).float().mean() > 0.7


def test_features_that_are_not_finite_are_one_line() -> None:
    features, label = blobs([1, 2], 10, seed=1)
    features[3, 2] = torch.nan
    with pytest.raises(TissError, match="not finite"):
        solve(sums_of(features, label, [1, 2], 3), identity, RIDGE)


def test_a_triangle_holds_a_symmetric_matrix() -> None:
    matrix = torch.randn(5, 5)
    matrix = matrix + matrix.T
    assert torch.equal(unpack(pack(matrix[None]), 5)[0], matrix.double())


def test_thinning_keeps_the_first_patches_of_every_step() -> None:
    parts = [sums_of(*blobs([1, 2], 20, seed=s), [1], 3) for s in (1, 2)]
    sums = parts[0].added(parts[1])
    few = sums.thinned(10)
    assert few.steps.tolist() == [0] * 5 + [1] * 5
    assert torch.equal(few.patches[5:], parts[1].patches[:5])
    assert torch.equal(few.open_counts, sums.open_counts)


@pytest.mark.parametrize(("size", "padded"), [((16, 24), (16, 24)), ((13, 20), (16, 24))])
def test_shares_of_a_patch(size: tuple[int, int], padded: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, 4, (2, *size), generator=generator)
    label[label == 3] = 255
    grid = (padded[0] // 8, padded[1] // 8)
    found = patch_shares(label, grid, padded, classes=3)
    whole = F.pad(label, (0, padded[1] - size[1], 0, padded[0] - size[0]), value=255)
    hot = torch.stack([(whole == c).float() for c in range(3)], dim=1)
    assert torch.equal(found, F.avg_pool2d(hot, 8).flatten(2).transpose(1, 2))


def test_a_sample_stands_for_all_patches_of_a_class_in_an_image() -> None:
    generator = torch.Generator().manual_seed(0)
    owner = torch.randint(-1, 4, (3, 50), generator=generator)
    keys = torch.rand(3, 50, generator=generator)
    factor = sampled(owner, keys, classes=4, most=5)
    for image, channel in itertools.product(range(3), range(-1, 4)):
        mine = owner[image] == channel
        found, own = factor[image][mine], keys[image][mine]
        count = int(mine.sum())
        assert float(found.sum()) == pytest.approx(count if channel >= 0 else 0)
        assert set(own[found > 0].tolist()) == set(own.sort().values[:5].tolist() if channel >= 0 else [])
    assert torch.equal(sampled(owner[1:2], keys[1:2], 4, 5)[0], factor[1])  # whatever else is in the batch
    assert torch.equal(sampled(owner, keys, 4, 50), (owner >= 0).float())


def session_at(step: int, **method: Any) -> tuple[Session, Any]:
    run = open_run(toy_config({"name": "analytic", "width": 64, **method}))
    session = Session.start(run.config, run.scenario[0], reporter=Reporter())
    for one in list(run.scenario)[:step]:
        session.learn(one)
    return session, run.scenario


def test_sums_of_another_encoder_are_refused() -> None:
    session, scenario = session_at(1)
    with torch.no_grad():
        next(session.model.body.parameters()).add_(1)
    with pytest.raises(TissError, match="another encoder"):
        session.learn(scenario[1])


def test_a_later_step_without_sums_is_refused() -> None:
    """It would solve a head that knows the step's own classes only."""
    session, scenario = session_at(1)
    session.method.load_state({})
    with pytest.raises(TissError, match="needs the sums of the earlier steps"):
        session.learn(scenario[1])


@pytest.mark.parametrize("name", ["counts", "labelled", "scales", "steps"])
def test_a_damaged_state_is_one_line(name: str) -> None:
    session, scenario = session_at(1)
    state = session.method.state()
    state[name] = state[name] + 9 if name == "steps" else state[name][1:]
    session.method.load_state(state)
    with pytest.raises(TissError, match="damaged"):
        session.learn(scenario[1])


@pytest.mark.parametrize("broken", ["shape", "missing"])
def test_a_state_that_does_not_fit_is_refused(tmp_path: Path, broken: str) -> None:
    session, scenario = session_at(1)
    state = session.method.state()
    write_tensors(tmp_path / "state.safetensors", state)
    state = read_tensors(tmp_path / "state.safetensors")
    if broken == "shape":
        state["scatter"] = state["scatter"][:, :-1]
    else:
        del state["labelled"]
    session.method.load_state(state)
    with pytest.raises(TissError, match="do not fit"):
        session.learn(scenario[1])


def test_which_classes_a_step_labels() -> None:
    """In sequential steps the old ones too, so their patches are not looked for in the background."""
    labelled = {}
    for setup in ("overlapped", "sequential"):
        run = open_run(toy_config({"name": "analytic", "width": 64}, setup=setup))
        session = Session.start(run.config, run.scenario[0], reporter=Reporter())
        for step in list(run.scenario)[:2]:
            session.learn(step)
        labelled[setup] = session.method.state()["labelled"].tolist()
    assert labelled == {
        "overlapped": [[0, 1, 1, 0], [0, 0, 0, 1]],
        "sequential": [[0, 1, 1, 0], [0, 1, 1, 1]],
    }


def test_memory_would_count_images_twice() -> None:
    with pytest.raises(TissError, match="memory 4: analytic keeps sums over all earlier images"):
        open_run(toy_config("analytic", memory=4))


@pytest.mark.parametrize(("decoder", "solved"), [("linear", True), ("deeplabv3", False)])
def test_a_decoder_is_trained_though_the_encoder_is_not(decoder: str, solved: bool) -> None:
    run = open_run(toy_config("lda", decoder=decoder, train={"encoder_lr": 0}))
    step = run.scenario[0]
    session = Session.start(run.config, step, reporter=Reporter())
    assert session.solves(step) is solved
    before = {name: tensor.clone() for name, tensor in session.model.body.state_dict().items()}
    session.learn(step)
    after = session.model.body.state_dict()
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == (set() if solved else {"decoder"})


def test_a_base_gives_the_encoder_and_the_head_is_solved_again(tmp_path: Path) -> None:
    """A base solved with other settings must not leave its own head; such a head is no start for training."""
    narrow, wide = ({"name": "analytic", "width": width} for width in (32, 64))
    for name, method in (("narrow", narrow), ("wide", wide)):
        run_experiment(toy_config(method, out=str(tmp_path / name)), reporter=Reporter())
    config = toy_config(wide, base=str(tmp_path / "narrow"), out=str(tmp_path / "based"))
    run_experiment(config, reporter=Reporter())
    for path in ("step-0/model.safetensors", "step-2/model.safetensors", "step-2/method.safetensors"):
        assert (tmp_path / "based" / path).read_bytes() == (tmp_path / "wide" / path).read_bytes(), path
    with pytest.raises(TissError, match="its head: random; this run needs linear"):
        run_experiment(toy_config("mib", base=str(tmp_path / "wide"), out=str(tmp_path / "mib")))


def test_a_base_that_was_trained_with_sigmoids(tmp_path: Path) -> None:
    run_experiment(toy_config("star", out=str(tmp_path / "star")), reporter=Reporter(), steps=1)
    assert from_pretrained(tmp_path / "star" / "step-0").rule == "sigmoid"
    config = toy_config("lda", base=str(tmp_path / "star"), out=str(tmp_path / "lda"))
    run_experiment(config, reporter=Reporter(), steps=1)
    assert from_pretrained(tmp_path / "lda" / "step-0").rule == "softmax"


def test_a_head_on_random_features_is_two_convolutions_in_an_exported_file(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    session, _ = session_at(2)
    for half in (False, True):
        path = tmp_path / f"half-{half}.onnx"
        assert export_model(copy.deepcopy(session.model), path, "onnx", 32, half=half).equal > 0.99
        kinds = [node.op_type for node in onnx.load(path).graph.node]
        first = len(kinds) - kinds[::-1].index("Relu") - 1
        assert [kind for kind in kinds[first - 1 : first + 4] if kind != "Cast"][:3] == [
            "Conv",
            "Relu",
            "Conv",
        ]


def test_the_state_is_as_large_as_promised() -> None:
    session, _ = session_at(2, patches=50)
    state = session.method.state()
    assert len(state["patches"]) == 50
    assert sum(t.nbytes for t in state.values()) <= session.method.state_bytes(session.model, 4)


def test_what_two_learned_on_one_base_adds_up() -> None:
    """As teaching both, one after the other; the classes of the second come after those of the first."""
    base = sums_of(*blobs([1, 2, 3, 4], 50, seed=1), [1, 2], 5).without(4).without(3)
    three, four = blobs([1, 3], 40, seed=2), blobs([2, 4], 30, seed=3)
    step_three = sums_of(*three, [3], 4)
    apart = sums_of(
        four[0], torch.where(four[1] == 4, 3, four[1]), [3], 4
    )  # its fourth channel is the third here
    merged = base.added(step_three).added(base.added(apart).since(base, 4))
    after = base.added(step_three).added(sums_of(*four, [4], 5))
    for name, found in merged.tensors().items():
        torch.testing.assert_close(found, after.tensors()[name], atol=1e-3, rtol=1e-5)
    for found, expected in zip(solve(merged, identity, RIDGE), solve(after, identity, RIDGE), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_a_forgotten_class_was_background_all_along() -> None:
    features, label = blobs([1, 2, 3], 60, seed=1)
    found = solve(sums_of(features, label, [1, 2, 3], 4).without(2), identity, RIDGE, shared=False)
    never = sums_of(features, torch.where(label == 3, 2, torch.where(label == 2, 0, label)), [1, 2], 3)
    for one, other in zip(found, solve(never, identity, RIDGE, shared=False), strict=True):
        torch.testing.assert_close(
            one, other, atol=0.1, rtol=0.02
        )  # the never-labelled patches are kept in int8
