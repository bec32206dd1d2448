"""One update of the weights: eager anywhere, or replayed as one CUDA graph where the machine and the method allow.

An eager step launches some thousand small kernels, and at a batch of twelve the card waits for most of them. A
graph is launched once. The first updates run eagerly (they create the optimiser's state), then the very same
function is captured; learning rates live in tensors so that the schedule goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from tiss.data.base import Batch
from tiss.engine.training import StepTraining
from tiss.models.contract import Output

Update = Callable[[Batch], dict[str, Tensor]]
EAGER_UPDATES = 3  # before the capture: lazy initialisation, compilation and momentum happen in these


def make_update(training: StepTraining, optimizer: torch.optim.Optimizer) -> Update:
    """The function that does one update and returns the loss terms by name, detached, on the device."""
    student = training.world.wrap(training.model)
    eager = EagerUpdate(training, student, optimizer)
    return GraphedUpdate(eager) if graphs_pay(training) else eager


def graphs_pay(training: StepTraining) -> bool:
    """One CUDA device, nothing accumulated, and a method that never looks at a value on the way."""
    train, world = training.config.train, training.world
    single = world.device.type == "cuda" and world.size == 1 and train.accumulate == 1
    return single and train.compile != "off" and training.method.capturable


class EagerUpdate:
    """Forward, backward and optimiser, launched one kernel after another."""

    def __init__(self, training: StepTraining, student: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.training, self.student, self.optimizer = training, student, optimizer

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        training = self.training
        parts = split_batch(batch, training.config.train.accumulate)
        totals: dict[str, Tensor] = {}
        for index, part in enumerate(parts):
            with self._gradients_meet(index == len(parts) - 1):
                terms = losses_of(training, self.student, part)
                total = torch.stack(list(terms.values())).sum() / len(parts)
                total.backward()
            for name, value in terms.items():
                totals[name] = totals.get(name, 0.0) + value.detach() / len(parts)
        self.finish()
        return totals

    def finish(self) -> None:
        """Clips, steps and clears the gradients."""
        clip = self.training.config.train.clip
        if clip:
            owned = [p for p in self.training.model.parameters() if p.grad is not None]
            nn.utils.clip_grad_norm_(owned, clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _gradients_meet(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Processes exchange gradients with the last part of a batch only."""
        if isinstance(self.student, FSDPModule):
            self.student.set_requires_gradient_sync(last)
        if last or not isinstance(self.student, nn.parallel.DistributedDataParallel):
            return contextlib.nullcontext()
        return self.student.no_sync()


class GraphedUpdate:
    """The eager update, captured once and replayed."""

    def __init__(self, eager: EagerUpdate) -> None:
        self.eager = eager
        self.done = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batch: Batch | None = None
        self.names: list[str] = []
        self.terms: Tensor | None = None

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        if self.done < EAGER_UPDATES:
            self.done += 1
            return self._on_side_stream(batch)
        if self.graph is None:
            self._capture(batch)
        assert self.graph is not None and self.batch is not None and self.terms is not None
        self.batch.image.copy_(batch.image, non_blocking=True)
        self.batch.label.copy_(batch.label, non_blocking=True)
        self.graph.replay()
        return dict(zip(self.names, self.terms.clone().unbind(), strict=True))

    def _on_side_stream(self, batch: Batch) -> dict[str, Tensor]:
        """Capture wants the warm-up on another stream than the default one."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            terms = self.eager(batch)
        torch.cuda.current_stream().wait_stream(side)
        return terms

    def _capture(self, batch: Batch) -> None:
        self.batch = Batch(batch.image.clone(), batch.label.clone(), batch.ids)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            terms = self.eager(self.batch)
            self.names = list(terms)
            self.terms = torch.stack([terms[name].float() for name in self.names])


def losses_of(training: StepTraining, student: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The method's terms for one batch: teacher, targets, student, losses.

    Only the models run in half precision: sums over a class's features or over a row of patches need more.
    """
    method, fused = training.method, training.config.train.fused
    needs = method.needs(training.model)
    taught: Output | None = None
    if training.teacher is not None and method.uses_teacher:
        with torch.no_grad(), training.world.autocast():
            taught = training.teacher(batch.image, needs=needs).with_fused(fused)
    batch = replace(batch, label=method.targets(batch, taught))
    with training.world.autocast():
        output: Output = student(batch.image, needs=needs).with_fused(fused)
    return method.losses(batch, output, taught)


def split_batch(batch: Batch, parts: int) -> list[Batch]:
    """`batch` in `parts` pieces of equal length."""
    if parts == 1:
        return [batch]
    size = len(batch.ids) // parts
    cut = [slice(i * size, (i + 1) * size) for i in range(parts)]
    return [Batch(batch.image[c], batch.label[c], batch.ids[c]) for c in cut]
