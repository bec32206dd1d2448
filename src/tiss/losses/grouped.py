"""The one primitive behind every pixel loss: cross-entropy over grouped classes, with hard or soft targets.

A student's channels fall into two ranges, old [0, split) and new [split, total); channels from `total` on
take no part. Each kind of target knows only one of the ranges, and the other one is background to it: with
lse the log-sum-exp,

    hard target (a label)      log q(0) = lse(z[:split])            − lse(z[:total])
    soft target (a teacher)    log q(0) = lse(z[{0} ∪ split:total]) − lse(z[:total])
    every other channel        log q(c) = z_c − lse(z[:total])
    loss                       −Σ_c t_c log q(c)

| loss | target | split | total |
|---|---|---|---|
| cross-entropy | hard | 1 | C |
| unbiased cross-entropy | hard | old | C |
| unbiased distillation | soft | old | C |
| distillation | soft | old | old |

Logits come at any resolution and are brought to pixels inside, as `Resolution` says. The mean is over all
pixels: ignored ones add 0 to a hard loss and stay in the denominator. Three ways compute it: `plain` holds
the logits of every pixel, `chunked` those of a few rows at a time, `triton_kernels` none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tiss.data.base import IGNORE
from tiss.losses.precision import full_precision, without_autocast
from tiss.models.contract import Resolution

Pair = tuple[Tensor | None, Tensor | None]


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


class Backend(Protocol):
    """A way to compute a task: its hard and its soft loss, None where not asked for."""

    def __call__(self, task: Task) -> Pair: ...


def grouped_cross_entropy(task: Task) -> Pair:
    """Hard and soft loss of `task`, by the backend that its resolution's `fused` asks for."""
    from tiss.losses.backends import choose  # it imports the other ways, which import this module

    with without_autocast(task.logits):
        return choose(task)(task)


def plain(task: Task) -> Pair:
    """The definition, with autograd's gradients, holding the logits at full resolution; any precision."""
    pixels = task.to.upsample(full_precision(task.logits))
    everything = torch.logsumexp(pixels[:, : task.total], 1)
    hard = soft = None
    if task.labels is not None:
        hard = mean_over_pixels(_plain_hard(task, task.labels, pixels, everything), task.image_weights)
    if task.teacher is not None:
        soft = _plain_soft(task, task.teacher, pixels, everything).mean()
    return hard, soft


def _plain_hard(task: Task, labels: Tensor, pixels: Tensor, everything: Tensor) -> Tensor:
    labels = labels.long()
    ignored = labels == IGNORE
    chosen = pixels.gather(1, labels.masked_fill(ignored, 0).unsqueeze(1)).squeeze(1)
    if task.split > 1:
        chosen = torch.where(labels < task.split, torch.logsumexp(pixels[:, : task.split], 1), chosen)
    return (everything - chosen).masked_fill(ignored, 0.0)


def _plain_soft(task: Task, teacher: Tensor, pixels: Tensor, everything: Tensor) -> Tensor:
    target = task.to.upsample(full_precision(teacher.detach())).softmax(1)
    background = pixels[:, 0]
    if task.total > task.split:
        background = torch.logaddexp(background, torch.logsumexp(pixels[:, task.split : task.total], 1))
    others = pixels[:, 1 : task.split] - everything.unsqueeze(1)
    return -(target[:, 0] * (background - everything) + (target[:, 1:] * others).sum(1))


def mean_over_pixels(pixel_losses: Tensor, image_weights: Tensor | None) -> Tensor:
    """Mean of N × H × W, each image multiplied by its weight first."""
    if image_weights is None:
        return pixel_losses.mean()
    return (pixel_losses.mean((1, 2)) * image_weights).mean()
