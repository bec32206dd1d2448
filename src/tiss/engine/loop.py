"""The training loop: one step, from the grown head to the last update.

Read it from top to bottom: `train_step` is the loop; then one update (teacher, targets, student, losses, backward,
optimizer) and its capture as a CUDA graph; the optimizer and its schedule; the log of the losses; the checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from tiss.data.base import Batch
from tiss.data.loader import TrainLoader
from tiss.engine.checkpoint import (
    Position,
    flatten_optimizer,
    load_model,
    load_optimizer,
    read_position,
    save_checkpoint,
)
from tiss.engine.recipes import Plan
from tiss.engine.run_folder import Journal
from tiss.engine.sharding import full_state, sharded
from tiss.errors import SpaceError, TissError
from tiss.files import write_json
from tiss.methods.base import Batches, all_sum
from tiss.models import Output, SegmentationModel
from tiss.randomness import seed_of
from tiss.scenarios.scenario import Step

if TYPE_CHECKING:
    from tiss.engine.session import Session

Update = Callable[[Batch], dict[str, Tensor]]
EAGER_UPDATES = 3  # before a capture: lazy initialisation, compilation and momentum happen in these


def train_step(
    session: Session, step: Step, teacher: SegmentationModel | None, loader: TrainLoader, journal: Journal
) -> float:
    """Trains one step, from its checkpoint where there is one; returns the seconds it took in all."""
    config, world, method, reporter = session.config, session.world, session.method, session.reporter
    plan = Plan.of(config, step.index)
    position = restore(session, step, teacher, loader, journal)
    start = time.monotonic() - position.train_seconds

    with sharded(session.model, config.train, world) as model:
        student = world.wrap(model)
        optimizer = build_optimizer(model, plan, world.device)
        if position.iteration > 0 and journal.checkpoint is not None:
            load_optimizer(journal.checkpoint, optimizer)
        update = make_update(session, student, teacher, optimizer, plan)
        method.train_mode(model)
        losses = LossLog(session, step, journal, plan)

        total = plan.epochs * len(loader)
        warmup = min(
            plan.warmup, total // 10
        )  # a short step would be over before the warm-up of the first one
        iteration = position.iteration
        with reporter.bar(f"step {step.index} · {method.name}", total, iteration) as bar:
            while iteration < total:
                epoch, offset = divmod(iteration, len(loader))
                for batch in loader.epoch(epoch, start=offset):
                    factor = rate_factor(iteration, total, warmup, config.train.power)
                    set_rate(optimizer, factor)
                    # layers that draw numbers themselves (stochastic depth) must draw the same after a resume
                    torch.manual_seed(seed_of(config.seed, "layers", step.index, iteration, world.rank))
                    losses.add(iteration, batch, update(batch))
                    iteration += 1
                    last, note = iteration == total, ""
                    if iteration % config.train.log_every == 0 or last:
                        note = losses.flush(iteration, epoch, factor)
                    if iteration % config.train.save_every == 0 or last:
                        losses.check()
                        now = Position(step.index, iteration, journal.size(), time.monotonic() - start)
                        save(session, model, optimizer, journal, now, last)
                    bar.advance(1, note)
    end_step(session, step, loader)
    return time.monotonic() - start


def end_step(session: Session, step: Step, loader: TrainLoader) -> None:
    """Lets the method take from the step's images what it keeps of them."""
    with one_pass(session):
        session.method.end(step, session.model, pass_over(session, step, loader))


# ---------------------------------------------------------------------------------------------- one update


def make_update(
    session: Session,
    student: nn.Module,
    teacher: SegmentationModel | None,
    optimizer: torch.optim.Optimizer,
    plan: Plan,
) -> Update:
    """The function that does one update and returns the loss terms by name, detached, on the device.

    A CUDA graph replays it where that is possible: one device, nothing accumulated, and a method that never looks
    at a value on the way.
    """
    train, world = session.config.train, session.world
    update = EagerUpdate(session, student, teacher, optimizer, plan)
    single = world.device.type == "cuda" and world.size == 1 and train.accumulate == 1
    graphed = single and train.compile != "off" and session.method.capturable
    return GraphedUpdate(update) if graphed else update


class EagerUpdate:
    """Forward, losses, backward and optimizer, launched one kernel after another."""

    def __init__(
        self,
        session: Session,
        student: nn.Module,
        teacher: SegmentationModel | None,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
    ) -> None:
        self.session, self.student, self.teacher = session, student, teacher
        self.optimizer, self.plan = optimizer, plan
        self.needs = session.method.needs(session.model)

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        parts = split_batch(batch, self.session.config.train.accumulate)
        totals: dict[str, Tensor] = {}
        for index, part in enumerate(parts):
            with self.gradients_shared(index == len(parts) - 1):
                terms = self.losses(part)
                total = torch.stack(list(terms.values())).sum() / len(parts)
                total.backward()
            for name, value in terms.items():
                totals[name] = totals.get(name, 0.0) + value.detach() / len(parts)
        if self.plan.clip:
            owned = [p for p in self.student.parameters() if p.grad is not None]
            nn.utils.clip_grad_norm_(owned, self.plan.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return totals

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The method's terms for one batch.

        Only the models run in half precision: sums over a class's features or over a row of patches need more.
        """
        method, world, fused = self.session.method, self.session.world, self.session.config.train.fused
        taught: Output | None = None
        if self.teacher is not None:
            with torch.no_grad(), world.autocast():
                taught = self.teacher(batch.image, needs=self.needs).with_fused(fused)
        batch = replace(batch, label=method.targets(batch, taught))
        with world.autocast():
            output: Output = self.student(batch.image, needs=self.needs).with_fused(fused)
        return method.losses(batch, output, taught)

    def gradients_shared(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Processes exchange gradients with the last part of a batch only."""
        if isinstance(self.student, FSDPModule):
            self.student.set_requires_gradient_sync(last)
        if last or not isinstance(self.student, nn.parallel.DistributedDataParallel):
            return contextlib.nullcontext()
        return self.student.no_sync()


class GraphedUpdate:
    """The eager update, captured once as a CUDA graph and replayed.

    An eager update launches some thousand small kernels, and at a batch of twelve the GPU waits for most of them. A
    graph is launched once. The first updates run eagerly (they create the optimizer's state); learning rates live in
    tensors, so the schedule still applies.
    """

    def __init__(self, eager: EagerUpdate) -> None:
        self.eager = eager
        self.warmed = 0
        self.replay: Update | None = None

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        if self.warmed < EAGER_UPDATES:
            self.warmed += 1
            return self.on_side_stream(batch)
        if self.replay is None:
            self.replay = self.capture(batch)
        return self.replay(batch)

    def on_side_stream(self, batch: Batch) -> dict[str, Tensor]:
        """A capture needs its warm-up on another stream than the default one."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            terms = self.eager(batch)
        torch.cuda.current_stream().wait_stream(side)
        return terms

    def capture(self, batch: Batch) -> Update:
        kept = Batch(batch.image.clone(), batch.label.clone(), batch.ids)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            terms = self.eager(kept)
            names, values = list(terms), torch.stack([term.float() for term in terms.values()])

        def replay(batch: Batch) -> dict[str, Tensor]:
            kept.image.copy_(batch.image, non_blocking=True)
            kept.label.copy_(batch.label, non_blocking=True)
            graph.replay()
            return dict(zip(names, values.clone().unbind(), strict=True))

        return replay


def split_batch(batch: Batch, parts: int) -> list[Batch]:
    """`batch` in `parts` pieces of equal length."""
    if parts == 1:
        return [batch]
    size = len(batch.ids) // parts
    cut = [slice(i * size, (i + 1) * size) for i in range(parts)]
    return [Batch(batch.image[c], batch.label[c], batch.ids[c]) for c in cut]


# ------------------------------------------------------------------------------------ optimizer and schedule


def build_optimizer(model: SegmentationModel, plan: Plan, device: torch.device) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum or AdamW; the encoder's rate is `encoder_lr` times that of the rest.

    On a GPU the update is one kernel, and rates are tensors: a captured update reads what the schedule writes.
    """
    encoder = {id(parameter) for parameter in model.encoder.parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            factor = plan.encoder_lr if id(parameter) in encoder else 1.0
            # AdamW's decay is decoupled and strong: norms, biases and tokens are left out of it, as is usual
            decay = 0.0 if plan.optimizer == "adamw" and parameter.ndim < 2 else plan.weight_decay
            groups.setdefault((factor, decay), []).append(parameter)
    gpu = device.type == "cuda"
    parameters: list[dict[str, Any]] = []
    for (factor, decay), members in groups.items():
        peak = plan.lr * factor
        lr = torch.tensor(peak, device=device) if gpu else peak
        parameters.append({"params": members, "lr": lr, "peak": peak, "weight_decay": decay})
    if plan.optimizer == "adamw":
        return torch.optim.AdamW(parameters, fused=gpu, capturable=gpu)
    return torch.optim.SGD(parameters, momentum=plan.momentum, nesterov=plan.momentum > 0, fused=gpu)


def rate_factor(iteration: int, total: int, warmup: int, power: float) -> float:
    """Linear warm-up, then polynomial decay to zero at `total`.

    >>> [round(rate_factor(i, 10, 2, 1.0), 2) for i in (0, 1, 2, 9)]
    [0.5, 1.0, 0.8, 0.1]
    """
    rise = min(1.0, (iteration + 1) / warmup) if warmup else 1.0
    return rise if iteration < warmup else float((1 - iteration / total) ** power)


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(group["peak"] * factor)
        else:
            group["lr"] = group["peak"] * factor


# ------------------------------------------------------------------------------------------------- logging


class LossLog:
    """Keeps the losses on the device and reads them once per log line: means for the log, and a check for NaN."""

    def __init__(self, session: Session, step: Step, journal: Journal, plan: Plan) -> None:
        self.session, self.step, self.journal, self.plan = session, step, journal, plan
        self.pending: list[tuple[int, list[str], dict[str, Tensor]]] = []
        self.since = time.monotonic()

    def add(self, iteration: int, batch: Batch, terms: dict[str, Tensor]) -> None:
        self.pending.append((iteration, batch.ids, terms))

    def flush(self, iteration: int, epoch: int, factor: float) -> str:
        """Writes one line of metrics; returns a short note for the progress bar."""
        count, means = len(self.pending), self.check()
        now = time.monotonic()
        line: dict[str, Any] = {
            "step": self.step.index,
            "epoch": epoch,
            "iteration": iteration,
            "losses": means,
            "loss": sum(means.values()),
            "rate_factor": factor,
            "images_per_second": round(count * self.plan.batch / max(now - self.since, 1e-9), 2),
        }
        self.since = now
        self.journal.log(line)
        return f"loss {line['loss']:.3f}"

    def check(self) -> dict[str, float]:
        """Means of the terms since the last check, over all processes; stops the run if one is not finite."""
        if not self.pending:
            return {}
        names = list(self.pending[0][2])
        table = torch.stack(
            [torch.stack([terms[name].float() for name in names]) for _, _, terms in self.pending]
        )
        own = table.cpu()  # the one synchronisation of the interval
        if not bool(torch.isfinite(own).all()):
            self.report(names, own)
        total = all_sum(table.double().mean(dim=0)) / self.session.world.size
        means = dict(zip(names, total.tolist(), strict=True))
        if not all(map(math.isfinite, means.values())):
            raise TissError(
                "the loss is no longer finite in another process: see nonfinite-*.json in the run folder"
            )
        self.pending.clear()
        return means

    def report(self, names: list[str], table: Tensor) -> None:
        """Ends the run with the first update whose losses are not finite, and its images."""
        first = int((~torch.isfinite(table)).any(dim=1).nonzero()[0])
        iteration, ids, _ = self.pending[first]
        values = {name: repr(value) for name, value in zip(names, table[first].tolist(), strict=True)}
        where = "the losses " + ", ".join(f"{name} = {value}" for name, value in values.items())
        remedy = "start again with a lower train.lr"
        if self.journal.folder is not None:
            path = self.journal.folder / f"nonfinite-{self.session.world.rank}.json"
            position = {"step": self.step.index, "iteration": iteration, "seed": self.session.config.seed}
            write_json(path, {**position, "ids": ids, "losses": values})
            where = f"see {path.name} in the run folder"
            remedy = "lower train.lr or set train.clip, and start again in another folder (out)"
        raise TissError(
            f"step {self.step.index}, iteration {iteration}: the loss is not finite ({where}); {remedy}"
        )


# --------------------------------------------------------------------------------------------- checkpoint


def restore(
    session: Session, step: Step, teacher: SegmentationModel | None, loader: TrainLoader, journal: Journal
) -> Position:
    """Resumes the step from its checkpoint, or prepares it from the start."""
    folder = journal.checkpoint
    found = read_position(folder) if folder else None
    if folder is not None and found is not None and found.step == step.index:
        session.method.load_state(load_model(folder, session.model))
        journal.rewind(found.metrics_bytes)
        return found
    with one_pass(session):
        session.method.prepare(session.model, teacher, pass_over(session, step, loader))
    journal.restart(step.index)
    return Position(step.index, 0)


def save(
    session: Session,
    model: SegmentationModel,
    optimizer: torch.optim.Optimizer,
    journal: Journal,
    position: Position,
    last: bool,
) -> None:
    """Writes the checkpoint, from the first process; sharded states are gathered from all of them."""
    world = session.world
    if journal.checkpoint is None:
        return
    if world.is_main or session.config.train.shard:
        states = full_state(model), flatten_optimizer(optimizer), session.method.state()
        if world.is_main:
            try:
                save_checkpoint(journal.checkpoint, position, *states)
            except SpaceError:
                if not last:
                    raise
                # the model itself is stored next, in space that is reserved for it
                session.reporter.say(f"step {position.step}: no space for the last checkpoint")
    world.wait()


@contextlib.contextmanager
def one_pass(session: Session) -> Iterator[None]:
    """One pass over a step's images: its last batch is smaller, which is not worth another compilation."""
    with session.world.autocast(), torch.compiler.set_stance("force_eager"):
        yield


def pass_over(session: Session, step: Step, loader: TrainLoader) -> Batches:
    """Every training image of the step once, with a bar: over a large data set it takes a while."""

    def batches() -> Iterator[Batch]:
        own = -(-len(step.train) // session.world.size)
        with session.reporter.bar(f"pass over step {step.index} · {session.method.name}", own) as bar:
            for batch in loader.once():
                yield batch
                bar.advance(len(batch.ids))

    return batches
