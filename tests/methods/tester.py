"""One tester that every method passes on every architecture that it goes with."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from tests.methods.toy import toy_config
from tests.models.tester import check_saved
from tiss.config import RunConfig
from tiss.engine.progress import Bar, Reporter
from tiss.engine.run import open_run, run_experiment
from tiss.engine.session import Learner, Session
from tiss.files import read_tensors
from tiss.methods.base import METHODS
from tiss.methods.discriminant import Sums
from tiss.models import SegmentationModel

Tensors = dict[str, Tensor]


@dataclass
class Straight:
    """What a run that was never stopped leaves behind, step by step."""

    models: list[Tensors]
    states: list[Tensors]
    images: list[int]


def check_method(
    method: str, folder: Path, encoder: str = "vit_micro_patch8", decoder: str | None = None, **more: Any
) -> None:
    """Finite losses, frozen means frozen, save → load → same logits, resumed = straight, state survives."""
    config = toy_config(method, encoder, decoder, out=str(folder / "run"), **more)
    straight = run_straight(config, folder / "saved")
    check_promises(method, straight, config)
    resume_until_done(config)
    check_same(straight, Path(config.out or ""))
    check_metrics(Path(config.out or ""))


def run_straight(config: RunConfig, folder: Path) -> Straight:
    """The steps one after another in Python, without a run folder."""
    run = open_run(config)
    config, scenario = run.config, run.scenario
    learner = Learner(config=config, reporter=Reporter())
    found = Straight([], [], [])
    for step in scenario:
        with watched_teachers() as teachers:
            learner.fit(step)
        for teacher, before in teachers:
            assert_equal(dict(teacher.state_dict()), before)
        session = learner.session
        assert session is not None
        assert len(session.model.classes) == step.seen
        assert all(parameter.requires_grad for parameter in session.model.parameters())
        check_saved(copy.deepcopy(session.model).eval(), folder / f"step-{step.index}", crop=32)
        found.models.append(copied(session.model.state_dict()))
        found.states.append(copied(session.method.state()))
        found.images.append(len(step.train))
    return found


@contextlib.contextmanager
def watched_teachers() -> Iterator[list[tuple[SegmentationModel, Tensors]]]:
    """Every teacher that is used meanwhile, with its weights as they were at the start."""
    used: list[tuple[SegmentationModel, Tensors]] = []
    original = Session.make_teacher

    def watch(session: Session) -> SegmentationModel:
        teacher = original(session)
        assert_equal(copied(teacher.state_dict()), copied(session.model.state_dict()))
        used.append((teacher, copied(teacher.state_dict())))
        return teacher

    with mock.patch.object(Session, "make_teacher", watch):
        yield used


def check_promises(method: str, straight: Straight, config: RunConfig) -> None:
    """What a method promises to hold is the same to the last bit after each step; the rest has moved."""
    run = open_run(config)
    config, scenario = run.config, run.scenario
    model = Session.start(config, scenario[0], reporter=Reporter()).model
    held = PROMISES.get(method, lambda model, name: False)
    fresh = copied(model.state_dict())
    assert any(not torch.equal(fresh[name], straight.models[0][name]) for name in fresh), (
        "step 0 learned nothing"
    )
    for before, after in zip(straight.models, straight.models[1:], strict=False):
        names = {name for name in before if held(model, name)}
        assert_equal({n: after[n] for n in names}, {n: before[n] for n in names})
        moved = [n for n in after if n not in before or not torch.equal(before[n], after[n])]
        assert moved, "a later step learned nothing"
        if method not in STILL:
            assert any("encoder" in name for name in moved), "the encoder stood still"
    if method in STATEFUL:
        assert all(set(state) == STATEFUL[method] for state in straight.states[1:])


def in_batch_norm(model: SegmentationModel, name: str) -> bool:
    return isinstance(model.get_submodule(name.rpartition(".")[0]), _BatchNorm)


PROMISES: dict[str, Callable[[SegmentationModel, str], bool]] = {
    "frozen": lambda model, name: True,
    "recall": lambda model, name: name.startswith("body."),
    "analytic": lambda model, name: name.startswith("body."),
    "lda": lambda model, name: name.startswith("body."),
    "mib+frozenbn": in_batch_norm,
    "dkd": in_batch_norm,
    "ssul": lambda model, name: name not in ("head.rows.0", "head.biases.0"),  # see test_ssul
    "star": lambda model, name: name.startswith("head.") or in_batch_norm(model, name),
    "ploplong": lambda model, name: (
        in_batch_norm(model, name) and name.rpartition(".")[2].startswith("running")
    ),
}
STILL = ("frozen", "recall", "ssul", "analytic", "lda")  # whose encoder stays as step 0 left it
STATEFUL = {
    "plop": {"thresholds"},
    "ploplong": {"thresholds"},
    "sdr": {"prototypes", "prototype_counts"},
    "sdr+mib": {"prototypes", "prototype_counts"},
    "recall": {"means", "roots", "counts"},
    "star": {"prototypes", "noise", "norms", "counts"},
    "analytic": set(Sums.empty(1, 1).tensors()),
    "lda": set(Sums.empty(1, 1).tensors()),
}


class Stopped(KeyboardInterrupt):
    """The user's Ctrl-C."""


class Impatient(Reporter):
    """Stops a run after so many updates of one step, or images of the pass over a step that is solved."""

    def __init__(self, step: int, updates: int, solved: bool = False) -> None:
        self.title, self.left = (
            f"features of the images of step {step} " if solved else f"step {step} ",
            updates,
        )

    @contextlib.contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        yield _Fuse(self) if title.startswith(self.title) else _Fuse(None)


class _Fuse(Bar):
    def __init__(self, owner: Impatient | None) -> None:
        self.owner = owner

    def advance(self, count: int = 1, note: str = "") -> None:
        if self.owner is not None:
            self.owner.left -= count
            if self.owner.left <= 0:
                raise Stopped


def resume_until_done(config: RunConfig) -> None:
    """Stopped within step 0, before the first checkpoint of step 1, after it, and at the end of step 2."""
    run = open_run(config)
    stops = [(0, 3)] if run.scenario.joined else [(0, 3), (1, 1), (1, 2), (2, 3)]
    for number, (step, updates) in enumerate(stops):
        stopped = False
        try:
            solved = step > 0 and METHODS.get(run.config.method.name).solved
            run_experiment(config, resume=number > 0, reporter=Impatient(step, updates, solved))
        except Stopped:
            stopped = True
        assert stopped, f"step {step} has fewer than {updates} updates"
    results = run_experiment(config, resume=True, reporter=Reporter())
    assert results["finished"]


def check_same(straight: Straight, run: Path) -> None:
    """Weights and method's state of every step, to the last bit."""
    for index, (model, state) in enumerate(zip(straight.models, straight.states, strict=True)):
        folder = run / f"step-{index}"
        assert_equal(read_tensors(folder / "model.safetensors"), model)
        kept = folder / "method.safetensors"
        assert_equal(read_tensors(kept) if kept.exists() else {}, state)
    assert not (run / "checkpoint").exists()


def check_metrics(run: Path) -> None:
    """Every update is there once, in order, with finite losses."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    places = [(line["step"], line["iteration"]) for line in lines]
    assert places == sorted(set(places))
    for line in lines:
        assert line["losses"]
        assert all(math.isfinite(value) for value in line["losses"].values()), line


def copied(tensors: dict[str, Tensor]) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def assert_equal(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
