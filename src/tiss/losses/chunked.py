"""The grouped cross-entropy a few pixel rows at a time: never the logits of all pixels at once.

The gradient with respect to the small logits is made together with the loss, since it only scales with what
comes from above; nothing of full resolution is kept for the backward pass. Upsampling and its gradient are
matrix products, the same on every device and deterministic. Tensors of a chunk are R × N × C × W.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tiss.data.base import IGNORE
from tiss.losses.grouped import Pair, Task
from tiss.losses.precision import full_precision
from tiss.losses.resampling import row_and_column_matrices, widen

CHUNK_ELEMENTS = 1 << 20  # of a chunk's logits: 4 MiB in float32, about a core's cache


def chunked(task: Task) -> Pair:
    """Hard and soft loss of `task`; any device, any floating precision."""
    hard, soft = _Chunked.apply(task.logits, task)
    return (hard if task.labels is not None else None), (soft if task.teacher is not None else None)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, task: Task) -> tuple[Tensor, Tensor]:
        work = _Work(task, ctx.needs_input_grad[0])
        for start in range(0, work.height, work.step):
            work.add_rows(start, min(start + work.step, work.height))
        ctx.save_for_backward(*work.gradients())
        ctx.kind = logits.dtype
        hard, soft = work.losses
        return hard, soft

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, hard: Tensor, soft: Tensor) -> tuple[Tensor | None, None]:
        parts = [
            scale * gradient
            for scale, gradient in zip((hard, soft), ctx.saved_tensors, strict=True)
            if gradient is not None
        ]
        return sum(parts[1:], parts[0]).to(ctx.kind), None


class _Work:
    """One pass over the rows: sums of the two losses and, where wanted, of their gradients."""

    def __init__(self, task: Task, with_gradient: bool) -> None:
        self.task = task
        logits = full_precision(task.logits.detach())
        images, channels = logits.shape[0], task.total
        self.height, self.width = task.to.size
        self.rows, self.columns = row_and_column_matrices(logits, task.to)
        self.step = max(1, CHUNK_ELEMENTS // (images * channels * self.width))
        self.scale = 1 / (images * self.height * self.width)
        self.shape = (images, channels, self.width)
        self.student = widen(logits[:, :channels], self.columns)
        self.teacher = None
        if task.teacher is not None:
            self.teacher = widen(full_precision(task.teacher.detach()).to(logits.dtype), self.columns)
        self.labels = None if task.labels is None else task.labels.transpose(0, 1)
        self.weights = (
            None if task.image_weights is None else task.image_weights.to(logits.dtype).unsqueeze(1)
        )
        self.losses = [logits.new_zeros(()), logits.new_zeros(())]
        wanted = (with_gradient and self.labels is not None, with_gradient and self.teacher is not None)
        self.sums = [torch.zeros_like(self.student) if want else None for want in wanted]

    def add_rows(self, start: int, stop: int) -> None:
        rows = self.rows[start:stop]
        student = _Student((rows @ self.student).view(-1, *self.shape), self.task.split)
        if self.labels is not None:
            loss, gradient = student.hard(self.labels[start:stop], self.weights, self.sums[0] is not None)
            self._add(0, rows, loss, gradient)
        if self.teacher is not None:
            images, _, width = self.shape
            teacher = (rows @ self.teacher).view(stop - start, images, -1, width)
            loss, gradient = student.soft(teacher, self.sums[1] is not None)
            self._add(1, rows, loss, gradient)

    def _add(self, which: int, rows: Tensor, loss: Tensor, gradient: Tensor | None) -> None:
        self.losses[which] += loss * self.scale
        total = self.sums[which]
        if total is not None and gradient is not None:
            total.addmm_(rows.t(), gradient.view(len(rows), -1), alpha=self.scale)

    def gradients(self) -> list[Tensor | None]:
        """Of both losses, N × C × h × w; channels from `total` on get zero."""
        return [None if total is None else self._narrow(total) for total in self.sums]

    def _narrow(self, total: Tensor) -> Tensor:
        images, channels, width = self.shape
        small = (total.view(-1, width) @ self.columns).view(-1, images, channels, self.columns.shape[1])
        small = small.permute(1, 2, 0, 3)
        missing = self.task.logits.shape[1] - channels
        return torch.nn.functional.pad(small, (0, 0, 0, 0, 0, missing)) if missing else small


class _Student:
    """The student's logits of some rows, R × N × C × W, with the exponentials of its two ranges of channels.

    Each range has its own largest logit taken out, so that neither can vanish beside the other.
    """

    def __init__(self, logits: Tensor, split: int) -> None:
        self.logits = logits
        self.split = split
        self.first = logits[:, :, 0]
        self.old_exp, self.old_sum, self.old = _exponentials(logits[:, :, :split])
        self.everything, self.background = self.old, self.first
        self.has_new = logits.shape[2] > split
        if self.has_new:
            self.new_exp, self.new_sum, self.new = _exponentials(logits[:, :, split:])
            self.everything = torch.logaddexp(self.old, self.new)
            self.background = torch.logaddexp(
                self.first, self.new
            )  # to a teacher, the new classes are background

    def hard(
        self, labels: Tensor, weights: Tensor | None, with_gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Sum over pixels of the loss against labels R × N × W, and its gradient R × N × C × W."""
        labels = labels.long()
        counted = (labels != IGNORE).to(self.logits.dtype)
        if weights is not None:
            counted = counted * weights
        is_old = labels < self.split
        index = labels.masked_fill(is_old | (labels == IGNORE), 0).unsqueeze(2)
        chosen = torch.where(is_old, self.old, self.logits.gather(2, index).squeeze(2))
        loss = ((self.everything - chosen) * counted).sum()
        if not with_gradient:
            return loss, None
        on_old = torch.where(is_old, counted, torch.zeros_like(counted))
        gradient = self._spread(
            counted * (self.old - self.everything).exp() - on_old,
            counted * (self.new - self.everything).exp() if self.has_new else None,
        )
        gradient.scatter_add_(2, index, (on_old - counted).unsqueeze(2))
        return loss, gradient

    def soft(self, teacher: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Sum over pixels of the loss against the teacher's softmax, R × N × split × W, and its gradient."""
        target = teacher.softmax(2)
        first = target[:, :, 0]
        known = (target * self.logits[:, :, : self.split]).sum(2) - first * self.first
        loss = (self.everything - first * self.background - known).sum()
        if not with_gradient:
            return loss, None
        on_new = None
        if self.has_new:
            on_new = (self.new - self.everything).exp() - first * (self.new - self.background).exp()
        gradient = self._spread((self.old - self.everything).exp(), on_new)
        gradient[:, :, : self.split] -= target
        gradient[:, :, 0] += first * (1 - (self.first - self.background).exp())
        return loss, gradient

    def _spread(self, on_old: Tensor, on_new: Tensor | None) -> Tensor:
        """A gradient that adds up to `on_old` over the old range and to `on_new` over the new one."""
        gradient = torch.empty_like(self.logits)
        torch.mul(self.old_exp, (on_old / self.old_sum).unsqueeze(2), out=gradient[:, :, : self.split])
        if on_new is not None:
            torch.mul(self.new_exp, (on_new / self.new_sum).unsqueeze(2), out=gradient[:, :, self.split :])
        return gradient


def _exponentials(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(z − max) of one range, its sum over channels, and the range's log-sum-exp."""
    largest = logits.amax(2)
    exponentials = (logits - largest.unsqueeze(2)).exp_()
    total = exponentials.sum(2)
    return exponentials, total, largest + total.log()
