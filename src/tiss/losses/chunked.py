"""The grouped cross-entropy a few pixel rows at a time: never the logits of all pixels at once.

The gradient with respect to the small logits is computed with the loss, since it only scales with the upstream
gradient; nothing of full resolution is kept for the backward pass. Upsampling and its gradient are
matrix products, the same on every device and deterministic. Tensors of a chunk are R × N × C × W.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from tiss.data.base import IGNORE
from tiss.losses.upsampling import CHUNK_ELEMENTS, Rows, full_precision
from tiss.models.contract import Resolution

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """What to compute: a hard loss where there are labels, a soft one where there is a teacher.

    `logits` N × C × h × w; `labels` N × H × W, 255 = ignore; `teacher` N × split × h × w; `image_weights` N
    multiplies each image's hard loss before the mean.
    """

    logits: Tensor
    split: int
    total: int
    to: Resolution
    labels: Tensor | None = None
    teacher: Tensor | None = None
    image_weights: Tensor | None = None


def chunked(task: Task) -> Pair:
    """Hard and soft loss of `task`; any device, any floating precision."""
    pair: Pair = _Chunked.apply(task.logits, task)
    return pair


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, task: Task) -> Pair:
        small = full_precision(logits.detach())[:, : task.total]
        teacher = None if task.teacher is None else full_precision(task.teacher.detach()).to(small.dtype)
        weights = None if task.image_weights is None else task.image_weights.to(small.dtype).unsqueeze(1)
        rows = Rows(small, task.to, CHUNK_ELEMENTS)
        wide, guide = rows.widen(small), None if teacher is None else rows.widen(teacher)
        scale = 1 / (len(small) * task.to.size[0] * task.to.size[1])
        losses = [small.new_zeros(()), small.new_zeros(())]
        asked = (task.labels is not None, guide is not None)
        sums = [torch.zeros_like(wide) if ask and ctx.needs_input_grad[0] else None for ask in asked]

        def add(which: int, part: slice, loss: Tensor, gradient: Tensor | None) -> None:
            losses[which] += loss * scale
            total = sums[which]
            if total is not None and gradient is not None:
                rows.add(total, part, gradient, scale)

        for part in rows.parts:
            student = _Student(rows.pixels(wide, part), task.split)
            if task.labels is not None:
                labels = task.labels[:, part].transpose(0, 1)
                add(0, part, *student.hard(labels, weights, sums[0] is not None))
            if guide is not None:
                add(1, part, *student.soft(rows.pixels(guide, part), sums[1] is not None))
        missing = logits.shape[1] - task.total  # channels that take no part get zero
        gradients = [None if total is None else rows.narrow(total) for total in sums]
        ctx.save_for_backward(*(g if g is None else F.pad(g, (0, 0, 0, 0, 0, missing)) for g in gradients))
        ctx.kind = logits.dtype
        return losses[0], losses[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, hard: Tensor, soft: Tensor) -> tuple[Tensor, None]:
        pairs = zip((hard, soft), ctx.saved_tensors, strict=True)
        parts = [scale * gradient for scale, gradient in pairs if gradient is not None]
        return sum(parts[1:], parts[0]).to(ctx.kind), None


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
            # to a teacher, the new classes are background
            self.background = torch.logaddexp(self.first, self.new)

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
        gradient = self._scaled(
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
        gradient = self._scaled((self.old - self.everything).exp(), on_new)
        gradient[:, :, : self.split] -= target
        gradient[:, :, 0] += first * (1 - (self.first - self.background).exp())
        return loss, gradient

    def _scaled(self, on_old: Tensor, on_new: Tensor | None) -> Tensor:
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
