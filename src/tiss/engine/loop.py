"""The loop over batches: one step of a run, from the grown head to the last update."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tiss.data.base import Batch
from tiss.engine.checkpoint import (
    Position,
    flatten_optimizer,
    load_model,
    load_optimizer,
    read_position,
    save_checkpoint,
)
from tiss.engine.optimisation import build_optimizer, rate_factor, set_rate
from tiss.engine.sharding import full_state, spread
from tiss.engine.training import StepTraining
from tiss.engine.update import make_update
from tiss.errors import SpaceError, TissError
from tiss.files import mark, write_json
from tiss.methods.base import Batches, all_sum
from tiss.randomness import seed_of

SETTLED = 10  # updates of a step after which all others take about as long


def train_step(training: StepTraining) -> float:
    """Trains one step, from its checkpoint where there is one; returns the seconds it took in all."""
    position = _restore(training)
    start = time.monotonic() - position.train_seconds
    with spread(training) as spreading:
        _train(spreading, position, start)
    end_step(training)
    return time.monotonic() - start


def end_step(training: StepTraining) -> None:
    """Lets the method take from the step's pictures what it keeps of them."""
    with looking(training):
        training.method.end(training.step, training.model, _look(training))


def _train(training: StepTraining, position: Position, start: float) -> None:
    """The updates from `position` to the end of the step."""
    config, world, model, method = training.config, training.world, training.model, training.method
    optimizer = build_optimizer(model, config.train, training.step.index, world.device)
    if position.iteration > 0 and training.journal.checkpoint is not None:
        load_optimizer(training.journal.checkpoint, optimizer)
    update = make_update(training, optimizer)
    method.train_mode(model)
    watch = LossWatch(training)
    # a step of few pictures would be over before a warm-up meant for the first one
    warmup = min(config.train.warmup or 0, training.iterations // 10)
    iteration = position.iteration
    title = f"step {training.step.index} · {method.name}"
    with training.reporter.bar(title, training.iterations, iteration) as bar:
        while iteration < training.iterations:
            epoch, offset = divmod(iteration, len(training.loader))
            mark("data", routine="epoch" if iteration > position.iteration else None)
            for batch in training.loader.epoch(epoch, start=offset):
                # the first ones compile and capture: they take as long as they like
                settled = iteration >= position.iteration + SETTLED
                mark("train", "update" if settled else None, turn=(training.step.index, iteration))
                factor = rate_factor(iteration, training.iterations, warmup, config.train.power)
                set_rate(optimizer, factor)
                # layers that draw numbers themselves (stochastic depth) must draw the same after a resume
                torch.manual_seed(seed_of(config.seed, "layers", training.step.index, iteration, world.rank))
                watch.add(iteration, batch, update(batch))
                iteration += 1
                last = iteration == training.iterations
                note = ""
                if iteration % config.train.log_every == 0 or last:
                    note = watch.flush(iteration, epoch, factor)
                if training.journal.checkpoint and (iteration % config.train.save_every == 0 or last):
                    watch.check()
                    _save(training, optimizer, iteration, time.monotonic() - start)
                bar.advance(1, note)
                mark("data", routine="batch")
    mark("between")


class LossWatch:
    """Keeps the losses on the device and looks at them once a log line: means for the log, and an eye on NaN."""

    def __init__(self, training: StepTraining) -> None:
        self.training = training
        self.pending: list[tuple[int, list[str], dict[str, Tensor]]] = []
        self.since = time.monotonic()

    def add(self, iteration: int, batch: Batch, terms: dict[str, Tensor]) -> None:
        self.pending.append((iteration, batch.ids, terms))

    def flush(self, iteration: int, epoch: int, factor: float) -> str:
        """Writes one line of metrics; returns a short note for the progress bar."""
        count, means = len(self.pending), self.check()
        now = time.monotonic()
        images = count * (self.training.config.train.batch or 0)
        line: dict[str, Any] = {
            "step": self.training.step.index,
            "epoch": epoch,
            "iteration": iteration,
            "losses": means,
            "loss": sum(means.values()),
            "rate_factor": factor,
            "images_per_second": round(images / max(now - self.since, 1e-9), 2),
        }
        self.since = now
        self.training.journal.log(line)
        return f"loss {line['loss']:.3f}"

    def check(self) -> dict[str, float]:
        """Means of the terms since the last look, over all processes; stops the run where one is not finite."""
        if not self.pending:
            return {}
        names = list(self.pending[0][2])
        table = torch.stack(
            [torch.stack([terms[name].float() for name in names]) for _, _, terms in self.pending]
        )
        own = table.cpu()  # the one synchronisation of the interval
        if not bool(torch.isfinite(own).all()):
            self._report(names, own)
        total = all_sum(table.double().mean(dim=0)) / self.training.world.size
        means = dict(zip(names, total.tolist(), strict=True))
        if not all(map(math.isfinite, means.values())):
            raise TissError(
                "the loss is no longer finite in another process: see nonfinite-*.json in the run folder"
            )
        self.pending.clear()
        return means

    def _report(self, names: list[str], table: Tensor) -> None:
        first = int((~torch.isfinite(table)).any(dim=1).nonzero()[0])
        iteration, ids, _ = self.pending[first]
        values = {name: repr(value) for name, value in zip(names, table[first].tolist(), strict=True)}
        training = self.training
        remedy = "start again with a lower --train.lr"
        where = "the losses " + ", ".join(f"{name} = {value}" for name, value in values.items())
        if training.journal.folder is not None:
            path = training.journal.folder / f"nonfinite-{training.world.rank}.json"
            position = {"step": training.step.index, "iteration": iteration, "seed": training.config.seed}
            write_json(path, {**position, "ids": ids, "losses": values})
            where = f"see {path.name} in the run folder"
            remedy = (
                "the last checkpoint is whole: lower --train.lr or set --train.clip, and start again with "
                "another --out"
            )
        raise TissError(
            f"step {training.step.index}, iteration {iteration}: the loss is not finite ({where}); {remedy}"
        )


def _restore(training: StepTraining) -> Position:
    """Takes the step up where its checkpoint left it, or prepares it from the start."""
    folder = training.journal.checkpoint
    found = read_position(folder) if folder else None
    if folder is not None and found is not None and found.step == training.step.index:
        training.method.load_state(load_model(folder, training.model))
        training.journal.rewind(found.metrics_bytes)
        return found
    with looking(training):
        training.method.prepare(training.model, training.teacher, _look(training))
    training.journal.restart(training.step.index)
    return Position(training.step.index, 0)


@contextmanager
def looking(training: StepTraining) -> Iterator[None]:
    """One pass over a step's pictures: its last batch is smaller, which is not worth another compilation."""
    with training.world.autocast(), torch.compiler.set_stance("force_eager"):
        yield


def _look(training: StepTraining) -> Batches:
    """Every training image of the step once, with a bar: over a large data set it takes a while."""

    def batches() -> Iterator[Batch]:
        own = -(-len(training.step.train) // training.world.size)
        title = f"look at step {training.step.index} · {training.method.name}"
        with training.reporter.bar(title, own) as bar:
            for batch in training.loader.once():
                yield batch
                bar.advance(len(batch.ids))

    return batches


def _save(training: StepTraining, optimizer: torch.optim.Optimizer, iteration: int, seconds: float) -> None:
    journal, world = training.journal, training.world
    if journal.checkpoint is None:
        return
    mark("train")  # no longer one of many updates: states are gathered and copied first
    if world.is_main or training.config.train.shard:  # shards are gathered from all processes
        states = full_state(training.model), flatten_optimizer(optimizer), training.method.state()
        if world.is_main:
            journal.check()
            position = Position(training.step.index, iteration, journal.size(), seconds)
            try:
                save_checkpoint(journal.checkpoint, position, *states)
            except SpaceError:
                if iteration < training.iterations:
                    raise
                # only an insurance now: the model is stored next, in room that is held for it
                training.reporter.say(f"step {training.step.index}: no space for the last checkpoint")
    world.wait()
