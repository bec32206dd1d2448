"""The training loop: one step, from the grown head to the last update.

Read it from top to bottom: `train_step` is the loop; then one update (teacher, targets, student, losses, backward,
optimizer) and its capture as a CUDA graph; the optimizer and its schedule; the log of the losses; the checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiss.data.base import Batch
from tiss.data.loader import TestLoader, TrainLoader
from tiss.engine.checkpoint import (
    Journal,
    Position,
    load_model,
    load_optimizer,
    read_position,
    save_checkpoint,
)
from tiss.engine.recipes import Plan
from tiss.errors import SpaceError, TissError
from tiss.evaluation.evaluate import window_slices
from tiss.files import write_json
from tiss.methods.base import Batches, all_sum
from tiss.models import Output, SegmentationModel
from tiss.randomness import seed_of
from tiss.scenarios import Step

if TYPE_CHECKING:
    from tiss.engine.session import Session

Update = Callable[[Batch], dict[str, Tensor]]
EAGER_UPDATES = 3  # before a capture: lazy initialisation, compilation and momentum happen in these


def train_step(
    session: Session, step: Step, teacher: SegmentationModel | None, loader: TrainLoader, journal: Journal
) -> float:
    """Trains one step, from its checkpoint where there is one; returns the seconds it took in all."""
    config, world, method, model = session.config, session.world, session.method, session.model
    plan = Plan.of(config, step.index)
    position = restore(session, step, teacher, loader, journal)
    start = time.monotonic() - position.train_seconds

    student = world.wrap(model)
    optimizer = build_optimizer(model, plan, world.device)
    if position.iteration > 0 and journal.checkpoint is not None:
        load_optimizer(journal.checkpoint, optimizer)
    update = graphed(EagerUpdate(session, student, teacher, optimizer, plan))
    method.train_mode(model)
    fixed = session.fixed(step)
    if fixed:
        model.body.eval()
    losses = LossLog(session, step, journal, plan)

    total = 0 if session.solves(step) else plan.epochs * len(loader)
    warmup = min(plan.warmup, total // 10)  # a short step would be over before the warm-up of the first one
    iteration = position.iteration
    seen = session.looked_up(model, teacher) if fixed else contextlib.nullcontext()
    with seen, session.reporter.bar(f"step {step.index} · {method.name}", total, iteration) as bar:
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
                    save(session, optimizer, journal, now, last)
                bar.advance(1, note)
    end_step(session, step, loader)
    return time.monotonic() - start


def end_step(session: Session, step: Step, loader: TrainLoader) -> None:
    """Lets the method take from the step's images what it keeps of them."""
    with one_pass(session, step, loader) as batches:
        session.method.end(step, session.model, batches)


# ---------------------------------------------------------------------------------------------- one update


@dataclass
class EagerUpdate:
    """Forward, losses, backward and optimizer, launched one kernel after another.

    It returns the loss terms by name, detached, on the device.
    """

    session: Session
    student: nn.Module
    teacher: SegmentationModel | None
    optimizer: torch.optim.Optimizer
    plan: Plan

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        count = self.session.config.train.accumulate
        size = len(batch.ids) // count
        totals: dict[str, Tensor] = {}
        distributed = isinstance(self.student, nn.parallel.DistributedDataParallel)
        for index in range(count):
            cut = slice(index * size, (index + 1) * size)
            early = distributed and index < count - 1  # processes exchange gradients with the last part only
            with self.student.no_sync() if early else contextlib.nullcontext():  # type: ignore[operator]
                terms = self.losses(Batch(batch.image[cut], batch.label[cut], batch.ids[cut]))
                total = torch.stack(list(terms.values())).sum() / count
                total.backward()
            for name, value in terms.items():
                totals[name] = totals.get(name, 0.0) + value.detach() / count
        if self.plan.clip:
            nn.utils.clip_grad_norm_(self.student.parameters(), self.plan.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return totals

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The method's terms for one batch.

        Only the models run in half precision: sums over a class's features or over a row of patches need more.
        """
        method, world, fused = self.session.method, self.session.world, self.session.config.train.fused
        taught: Output | None = None
        needs = method.needs(self.session.model)
        if self.teacher is not None:
            with torch.no_grad(), world.autocast():
                taught = self.teacher(batch.image, needs=needs).with_fused(fused)
        batch = replace(batch, label=method.targets(batch, taught))
        with world.autocast():
            output: Output = self.student(batch.image, needs=needs).with_fused(fused)
        return method.losses(batch, output, taught)


def graphed(eager: EagerUpdate) -> Update:
    """The update, captured once as a CUDA graph and replayed, where that is possible; else as it is.

    An eager update launches some thousand small kernels, and at a batch of twelve the GPU waits for most of them. A
    graph is launched once. It takes one device, nothing accumulated, and a method that never looks at a value on the
    way. The first updates run eagerly (they create the optimizer's state); learning rates live in tensors, so the
    schedule still applies.
    """
    session, train = eager.session, eager.session.config.train
    single = session.world.device.type == "cuda" and session.world.size == 1 and train.accumulate == 1
    if not single or train.compile == "off" or not session.method.capturable:
        return eager
    warmed = 0
    replay: Update | None = None

    def update(batch: Batch) -> dict[str, Tensor]:
        nonlocal warmed, replay
        if warmed < EAGER_UPDATES:
            warmed += 1
            side = torch.cuda.Stream()  # a capture needs its warm-up on another stream than the default one
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                terms = eager(batch)
            torch.cuda.current_stream().wait_stream(side)
            return terms
        replay = replay or capture(eager, batch)
        return replay(batch)

    return update


def capture(eager: EagerUpdate, batch: Batch) -> Update:
    kept = Batch(batch.image.clone(), batch.label.clone(), batch.ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        terms = eager(kept)
        names, values = list(terms), torch.stack([term.float() for term in terms.values()])

    def replay(batch: Batch) -> dict[str, Tensor]:
        kept.image.copy_(batch.image, non_blocking=True)
        kept.label.copy_(batch.label, non_blocking=True)
        graph.replay()
        return dict(zip(names, values.clone().unbind(), strict=True))

    return replay


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
        self.since, self.updates = time.monotonic(), 0  # since the last line of metrics

    def add(self, iteration: int, batch: Batch, terms: dict[str, Tensor]) -> None:
        self.pending.append((iteration, batch.ids, terms))
        self.updates += 1

    def flush(self, iteration: int, epoch: int, factor: float) -> str:
        """Writes one line of metrics; returns a short note for the progress bar."""
        means, now = self.check(), time.monotonic()
        line = {"step": self.step.index, "epoch": epoch, "iteration": iteration, "losses": means}
        line |= {"loss": sum(means.values()), "rate_factor": factor}
        line["images_per_second"] = round(self.updates * self.plan.batch / max(now - self.since, 1e-9), 2)
        self.since, self.updates = now, 0
        self.journal.log(line)
        return f"loss {line['loss']:.3f}"

    def check(self) -> dict[str, float]:
        """Means of the terms since the last check, over all processes; stops the run if one is not finite."""
        if not self.pending:
            return {}
        names = list(self.pending[0][2])
        rows = [torch.stack([terms[name].float() for name in names]) for _, _, terms in self.pending]
        table = torch.stack(rows)
        own = table.cpu()  # the one synchronisation of the interval
        if not torch.isfinite(own).all():
            self.report(names, own)
        total = all_sum(table.double().mean(dim=0)) / self.session.world.size
        means = dict(zip(names, total.tolist(), strict=True))
        if not all(map(math.isfinite, means.values())):
            raise TissError(
                "the loss is not finite in another process: see nonfinite-*.json in the run folder"
            )
        self.pending.clear()
        return means

    def report(self, names: list[str], table: Tensor) -> None:
        """Ends the run with the first update whose losses are not finite, and its images."""
        first = int((~torch.isfinite(table)).any(dim=1).nonzero()[0])
        iteration, ids, _ = self.pending[first]
        values = {name: repr(value) for name, value in zip(names, table[first].tolist(), strict=True)}
        where, remedy = f"the losses {values}", "start again with a lower train.lr"
        if self.journal.folder is not None:
            path = self.journal.folder / f"nonfinite-{self.session.world.rank}.json"
            position = {"step": self.step.index, "iteration": iteration, "seed": self.session.config.seed}
            write_json(path, {**position, "ids": ids, "losses": values})
            where = f"see {path.name} in the run folder"
            remedy = "lower train.lr or set train.clip, and start again in another folder (out)"
        place = f"step {self.step.index}, iteration {iteration}"
        raise TissError(f"{place}: the loss is not finite ({where}); {remedy}")


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
    with one_pass(session, step, loader) as batches:
        session.method.prepare(session.model, teacher, batches)
    journal.restart(step.index)
    return Position(step.index, 0)


def save(
    session: Session, optimizer: torch.optim.Optimizer, journal: Journal, position: Position, last: bool
) -> None:
    """Writes the checkpoint, from the first process."""
    if session.world.is_main and journal.checkpoint is not None:
        try:
            save_checkpoint(journal.checkpoint, position, session.model, optimizer, session.method.state())
        except SpaceError:
            if not last:
                raise
            # the model itself is stored next, in space that is reserved for it
            session.reporter.say(f"step {position.step}: no space for the last checkpoint")
    session.world.wait()


@contextlib.contextmanager
def one_pass(session: Session, step: Step, loader: TrainLoader) -> Iterator[Batches]:
    """Every training image of the step once, with a bar: over a large data set it takes a while.

    The last batch is smaller, which is not worth another compilation. Where features are computed once for each
    image, the images are cut as in a test, which then takes the features of this pass.
    """

    def batches() -> Iterator[Batch]:
        own = -(-len(step.train) // session.world.size)
        title = f"features of the images of step {step.index} · {session.method.name}"
        with session.reporter.bar(title, own) as bar:
            if session.features and (session.method.solved or session.fixed(step)):
                with session.whole_images(step.train) as images:
                    yield from windows(images, loader.batch, bar.advance)
                return
            for batch in loader.once():
                yield batch
                bar.advance(len(batch.ids))

    with session.world.autocast(), torch.compiler.set_stance("force_eager"), session.looked_up(session.model):
        yield batches


def windows(images: TestLoader, batch: int, done: Callable[[int], None]) -> Iterator[Batch]:
    """The windows that a test cuts whole images into, `batch` of them at a time."""
    pieces: list[Batch] = []
    for whole in images:
        size = whole.image.shape[-2:]
        label = F.interpolate(whole.label[:, None].float(), size, mode="nearest-exact")[:, 0].long()
        cuts = product(*(window_slices(length, min(size)) for length in size))
        for number, (rows, columns) in enumerate(cuts):
            name = f"{whole.ids[0]} {number}"
            pieces.append(Batch(whole.image[..., rows, columns], label[..., rows, columns], [name]))
        done(1)
        while len(pieces) >= batch:
            yield joined(pieces[:batch])
            pieces = pieces[batch:]
    if pieces:
        yield joined(pieces)


def joined(parts: list[Batch]) -> Batch:
    image, label = torch.cat([part.image for part in parts]), torch.cat([part.label for part in parts])
    return Batch(image, label, [id for part in parts for id in part.ids])
