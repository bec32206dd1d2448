"""The one primitive behind every pixel loss: cross-entropy over grouped classes, with hard or soft targets.

A student with C channels is read as a distribution over fewer outputs: channel 0 stands for a whole group of
channels, and only the first `total` channels take part. With lse the log-sum-exp,

    log q(0) = lse(z[group]) − lse(z[:total])        log q(c) = z_c − lse(z[:total])   for the others
    loss     = −Σ_c t_c log q(c)

| loss | group | total | target t |
|---|---|---|---|
| cross-entropy | {0} | C | label |
| unbiased cross-entropy | {0, …, old − 1} | C | label, every one below `old` counted as 0 |
| unbiased distillation | {0} ∪ new | C | teacher's softmax |
| distillation | {0} | old | teacher's softmax |

Logits come at any resolution and are brought to pixels inside, as `Resolution` says. The mean is over all
pixels: ignored ones add 0 and stay in the denominator.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tiss.data.base import IGNORE
from tiss.models.contract import Resolution


@dataclass(frozen=True)
class Grouping:
    """Which channels stand together: output 0 is channels {0} ∪ [start, stop), out of the first `total`."""

    start: int
    stop: int
    total: int

    @classmethod
    def none(cls, channels: int) -> Grouping:
        """Every channel by itself."""
        return cls(1, 1, channels)

    @classmethod
    def old(cls, old_classes: int, channels: int) -> Grouping:
        """All old classes are background: what a label that shows only new classes means."""
        return cls(1, old_classes, channels)

    @classmethod
    def new(cls, old_classes: int, channels: int) -> Grouping:
        """All new classes are background: what a teacher that has never seen them means."""
        return cls(old_classes, channels, channels)

    def log_sum(self, logits: Tensor) -> Tensor:
        """lse(z[group]): N × C × H × W to N × H × W."""
        if self.start >= self.stop:
            return logits[:, 0]
        if self.start == 1:
            return torch.logsumexp(logits[:, : self.stop], 1)
        return torch.logaddexp(logits[:, 0], torch.logsumexp(logits[:, self.start : self.stop], 1))

    def fold(self, labels: Tensor) -> Tensor:
        """Labels of grouped channels become 0; 255 stays."""
        return torch.where((labels >= self.start) & (labels < self.stop), torch.zeros_like(labels), labels)


def hard_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    grouping: Grouping,
    to: Resolution | None = None,
    image_weights: Tensor | None = None,
) -> Tensor:
    """Grouped cross-entropy against labels.

    `logits` N × C × h × w, `labels` N × H × W (255 = ignore), `image_weights` N: a factor on each image.
    """
    to = to or Resolution.of(*labels.shape[-2:])
    return _weighted_mean(plain_hard(logits, labels, grouping, to), image_weights)


def soft_cross_entropy(
    logits: Tensor, teacher_logits: Tensor, grouping: Grouping, to: Resolution | None = None
) -> Tensor:
    """Grouped cross-entropy against the teacher's softmax, without gradient to the teacher.

    `logits` N × C × h × w, `teacher_logits` N × old × h × w; without `to`, at their own resolution.
    """
    to = to or Resolution.of(*logits.shape[-2:])
    return plain_soft(logits, teacher_logits, grouping, to).mean()


def plain_hard(logits: Tensor, labels: Tensor, grouping: Grouping, to: Resolution) -> Tensor:
    """Loss of every pixel, N × H × W, holding the logits at full resolution."""
    pixels = to.upsample(full_precision(logits))
    labels = grouping.fold(labels.long())
    ignored = labels == IGNORE
    chosen = pixels.gather(1, labels.masked_fill(ignored, 0).unsqueeze(1)).squeeze(1)
    chosen = torch.where(labels == 0, grouping.log_sum(pixels), chosen)
    everything = torch.logsumexp(pixels[:, : grouping.total], 1)
    return (everything - chosen).masked_fill(ignored, 0.0)


def plain_soft(logits: Tensor, teacher_logits: Tensor, grouping: Grouping, to: Resolution) -> Tensor:
    """Loss of every pixel, N × H × W, holding the logits at full resolution."""
    pixels = to.upsample(full_precision(logits))
    target = to.upsample(full_precision(teacher_logits.detach())).softmax(1)
    everything = torch.logsumexp(pixels[:, : grouping.total], 1)
    background = grouping.log_sum(pixels) - everything
    others = pixels[:, 1 : target.shape[1]] - everything.unsqueeze(1)
    return -(target[:, 0] * background + (target[:, 1:] * others).sum(1))


def full_precision(logits: Tensor) -> Tensor:
    """Losses are computed in float32 at least, whatever the model's precision."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


def _weighted_mean(pixel_losses: Tensor, image_weights: Tensor | None) -> Tensor:
    if image_weights is None:
        return pixel_losses.mean()
    return (pixel_losses.mean((1, 2)) * image_weights).mean()
