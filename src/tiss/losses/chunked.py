"""The pixel losses a few rows at a time: never the logits of all pixels at once.

The gradient with respect to the small logits is computed with the loss, since it only scales with the upstream
gradient; nothing of full resolution is kept for the backward pass. Upsampling and its gradient are
matrix products, the same on every device and deterministic. Tensors of a chunk are R × N × C × W.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from tiss.data.base import IGNORE
from tiss.losses.upsampling import CHUNK_ELEMENTS, Rows, full_precision
from tiss.models import Resolution

BINARY_ELEMENTS = {"cpu": CHUNK_ELEMENTS, "cuda": 1 << 23}  # a GPU needs fewer, larger pieces

Pair = tuple[Tensor, Tensor]
# some rows' logits and the rows to: which loss, its sum over the rows, its gradient
Part = Iterator[tuple[int, Tensor, Tensor]]
Measure = Callable[[Tensor, slice], Part]


@dataclass(frozen=True)
class Task:
    """What to compute: a hard loss where there are labels, a soft one where there is a teacher.

    `logits` N × C × h × w; `labels` N × H × W, 255 = ignore; `teacher` N × split × h × w; `image_weights` N
    multiplies each image's hard loss before the mean.
    """

    logits: Tensor
    split: int
    to: Resolution
    labels: Tensor | None = None
    teacher: Tensor | None = None
    image_weights: Tensor | None = None


def chunked(task: Task) -> Pair:
    """Hard and soft loss of `task`; any device, any floating precision."""

    def prepare(rows: Rows, kind: torch.dtype) -> Measure:
        guide = None
        if task.teacher is not None:
            guide = rows.widen(full_precision(task.teacher.detach()).to(kind))
        weights = None if task.image_weights is None else task.image_weights.to(kind).unsqueeze(1)

        def measure(pixels: Tensor, part: slice) -> Part:
            student = _Student(pixels, task.split)
            if task.labels is not None:
                yield 0, *student.hard(task.labels[:, part].transpose(0, 1), weights)
            if guide is not None:
                yield 1, *student.soft(rows.pixels(guide, part))

        return measure

    pair: Pair = _ByRows.apply(task.logits, task.to, CHUNK_ELEMENTS, prepare)
    return pair


def chunked_binary(
    logits: Tensor, labels: Tensor, to: Resolution, first: int = 1, positive: float = 1.0
) -> Tensor:
    """The binary cross-entropy of one sigmoid per channel from `first` on. With z these logits at a pixel of class y,

        loss = Σ_c softplus(z_c) − z_y + (positive − 1) · softplus(−z_y)        (without z_y where y is below `first`)
        gradient of z_c = σ(z_c) − [c = y] · (1 + (positive − 1) · (1 − σ(z_c)))

    Targets are compared, not looked up: no index can be out of range, and nothing is added in a changing order.
    """
    classes = torch.arange(first, logits.shape[1], device=logits.device).view(1, 1, -1, 1)

    def measure(pixels: Tensor, part: slice) -> Part:
        targets = labels[:, part].transpose(0, 1).long().unsqueeze(2)
        counted = (targets != IGNORE).to(pixels.dtype)
        wanted = (targets == classes).to(pixels.dtype)  # never where a pixel is ignored
        loss = (F.softplus(pixels).sum(2, keepdim=True) * counted).sum() - (pixels * wanted).sum()
        if positive != 1:
            loss = loss + (positive - 1) * (F.softplus(-pixels) * wanted).sum()
            wanted = wanted * (positive - (positive - 1) * pixels.sigmoid())
        yield 0, loss, pixels.sigmoid_().mul_(counted).sub_(wanted)

    budget = binary_budget(logits)
    loss: Tensor = _ByRows.apply(logits[:, first:], to, budget, lambda rows, kind: measure)[0]
    return loss


def chunked_binary_distillation(logits: Tensor, teacher: Tensor, to: Resolution) -> Tensor:
    """Σ over the teacher's foreground channels of softplus(z_c) − σ(z′_c) · z_c; the gradient is σ(z_c) − σ(z′_c)."""

    def prepare(rows: Rows, kind: torch.dtype) -> Measure:
        guide = rows.widen(full_precision(teacher.detach())[:, 1:].to(kind))

        def measure(pixels: Tensor, part: slice) -> Part:
            target = rows.pixels(guide, part).sigmoid()
            yield 0, (F.softplus(pixels) - target * pixels).sum(), pixels.sigmoid_().sub_(target)

        return measure

    own = logits[:, 1 : teacher.shape[1]]
    loss: Tensor = _ByRows.apply(own, to, binary_budget(logits), prepare)[0]
    return loss


def binary_budget(logits: Tensor) -> int:
    return BINARY_ELEMENTS.get(logits.device.type, BINARY_ELEMENTS["cpu"])


class _ByRows(torch.autograd.Function):
    """Two losses of upsampled logits, each a mean over pixels, `budget` logits at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        to: Resolution,
        budget: int,
        prepare: Callable[[Rows, torch.dtype], Measure],
    ) -> Pair:
        small = full_precision(logits.detach())
        rows = Rows(small, to, budget)
        wide, measure = rows.widen(small), prepare(rows, small.dtype)
        scale = 1 / (len(small) * to.size[0] * to.size[1])
        losses = [small.new_zeros(()), small.new_zeros(())]
        sums: list[Tensor | None] = [None, None]
        for part in rows.parts:
            for which, loss, gradient in measure(rows.pixels(wide, part), part):
                losses[which] += loss * scale
                if ctx.needs_input_grad[0]:
                    total = torch.zeros_like(wide) if (known := sums[which]) is None else known
                    rows.add(total, part, gradient, scale)
                    sums[which] = total
        ctx.save_for_backward(*(None if total is None else rows.narrow(total) for total in sums))
        ctx.kind = logits.dtype
        return losses[0], losses[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, hard: Tensor, soft: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip((hard, soft), ctx.saved_tensors, strict=True)
        parts = [scale * gradient for scale, gradient in pairs if gradient is not None]
        return sum(parts[1:], parts[0]).to(ctx.kind), None, None, None


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

    def hard(self, labels: Tensor, weights: Tensor | None) -> Pair:
        """Sum over pixels of the loss against labels R × N × W, and its gradient R × N × C × W."""
        labels = labels.long()
        counted = (labels != IGNORE).to(self.logits.dtype)
        if weights is not None:
            counted = counted * weights
        is_old = labels < self.split
        index = labels.masked_fill(is_old | (labels == IGNORE), 0).unsqueeze(2)
        chosen = torch.where(is_old, self.old, self.logits.gather(2, index).squeeze(2))
        loss = ((self.everything - chosen) * counted).sum()
        on_old = torch.where(is_old, counted, torch.zeros_like(counted))
        gradient = self._scaled(
            counted * (self.old - self.everything).exp() - on_old,
            counted * (self.new - self.everything).exp() if self.has_new else None,
        )
        gradient.scatter_add_(2, index, (on_old - counted).unsqueeze(2))
        return loss, gradient

    def soft(self, teacher: Tensor) -> Pair:
        """Sum over pixels of the loss against the teacher's softmax, R × N × split × W, and its gradient."""
        target = teacher.softmax(2)
        first = target[:, :, 0]
        known = (target * self.logits[:, :, : self.split]).sum(2) - first * self.first
        loss = (self.everything - first * self.background - known).sum()
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
