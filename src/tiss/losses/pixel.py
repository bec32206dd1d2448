"""The pixel losses, all from one primitive: cross-entropy over grouped classes, with hard or soft targets.

A student's C channels fall into two ranges, old [0, split) and new [split, C). Each kind of target knows only one
of the ranges, and the other one is background to it. With lse the log-sum-exp,

    hard target (a label)      log q(0) = lse(z[:split])       − lse(z)
    soft target (a teacher)    log q(0) = lse(z[{0} ∪ split:]) − lse(z)
    every other channel        log q(c) = z_c − lse(z)
    loss                       −Σ_c t_c log q(c)

| loss | target | split | C |
|---|---|---|---|
| cross-entropy | hard | 1 | all |
| unbiased cross-entropy | hard | old | all |
| unbiased distillation | soft | old | all |
| distillation | soft | old | old |

Logits come at any resolution and are brought to pixels inside, as `Resolution` says. The mean is over all
pixels: ignored ones add 0 to a hard loss and stay in the denominator. Three backends compute it: `plain` holds
the logits of every pixel, `chunked` those of a few rows at a time, `triton_pixels` none.

All functions take logits N × C × h × w. `to` says how they become pixels; without it the labels' size (or, for
distillation, the logits' own) is meant. `old_classes` counts the background.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.data.base import IGNORE
from tiss.errors import TissError
from tiss.losses.chunked import Pair, Task, chunked, chunked_binary, chunked_binary_distillation
from tiss.losses.upsampling import KERNEL_TYPES, exact_products, full_precision, has_triton, without_autocast
from tiss.models import Resolution

Backend = Callable[[Task], Pair]  # computes a task: its hard and its soft loss


def cross_entropy(
    logits: Tensor, labels: Tensor, *, to: Resolution | None = None, image_weights: Tensor | None = None
) -> Tensor:
    """Plain cross-entropy, mean over all pixels; ignored ones (255) add 0 and stay in the denominator.

    `labels` N × H × W; `image_weights` N multiplies each image's loss before the mean (PLOP).

    >>> logits = torch.tensor([2.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 1, 2)
    >>> round(float(cross_entropy(logits, torch.tensor([[[0, 255]]]))), 4)
    0.0635
    """
    return unbiased_cross_entropy(logits, labels, 1, to=to, image_weights=image_weights)


def unbiased_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    old_classes: int,
    *,
    to: Resolution | None = None,
    image_weights: Tensor | None = None,
) -> Tensor:
    """Unbiased cross-entropy (L_unce): the background's probability is that of all old classes together.

    Every label below `old_classes` counts as background; mean over all pixels, ignored ones in the
    denominator. With `old_classes=1` it is the plain cross-entropy.

    >>> logits = torch.zeros(1, 4, 1, 1)
    >>> round(float(unbiased_cross_entropy(logits, torch.tensor([[[0]]]), old_classes=3)), 4)  # −log ¾
    0.2877
    """
    to = to or Resolution.of(*labels.shape[-2:])
    return grouped_cross_entropy(Task(logits, old_classes, to, labels=labels, image_weights=image_weights))[0]


def unbiased_distillation(
    logits: Tensor, teacher_logits: Tensor, divide: bool = True, *, to: Resolution | None = None
) -> Tensor:
    """Unbiased distillation (L_unkd): the student's background is the background with all new classes.

    `teacher_logits` N × old × h × w gets no gradient. `divide` by `old`, as the published code does and the
    paper's formula does not. Mean over all pixels, ignored ones too.

    >>> student, teacher = torch.zeros(1, 3, 1, 1), torch.zeros(1, 2, 1, 1)
    >>> round(float(unbiased_distillation(student, teacher, divide=False)), 4)  # −½ log ⅔ − ½ log ⅓
    0.752
    """
    old, to = teacher_logits.shape[1], to or Resolution.of(*logits.shape[-2:])
    _, soft = grouped_cross_entropy(Task(logits, old, to, teacher=teacher_logits))
    return soft / old if divide else soft


def distillation(logits: Tensor, teacher_logits: Tensor, *, to: Resolution | None = None) -> Tensor:
    """Plain distillation (LwF): the student's softmax over the old channels; mean over channels and pixels.

    >>> student, teacher = torch.zeros(1, 3, 1, 1), torch.zeros(1, 2, 1, 1)
    >>> round(float(distillation(student, teacher)), 4)  # log 2 / 2
    0.3466
    """
    return unbiased_distillation(logits[:, : teacher_logits.shape[1]], teacher_logits, to=to)


def unbiased_losses(
    logits: Tensor,
    labels: Tensor,
    teacher_logits: Tensor,
    divide: bool = True,
    *,
    to: Resolution | None = None,
) -> Pair:
    """`unbiased_cross_entropy` and `unbiased_distillation` at once: the fused paths share the student's part.

    `old_classes` is the teacher's number of channels. Without `to`, the labels' size is meant for both.

    >>> student, teacher = torch.zeros(1, 3, 1, 1), torch.zeros(1, 2, 1, 1)
    >>> hard, soft = unbiased_losses(student, torch.tensor([[[2]]]), teacher, divide=False)
    >>> round(float(hard), 4), round(float(soft), 4)
    (1.0986, 0.752)
    """
    old = teacher_logits.shape[1]
    to = to or Resolution.of(*labels.shape[-2:])
    hard, soft = grouped_cross_entropy(Task(logits, old, to, labels, teacher_logits))
    return hard, soft / old if divide else soft


def binary_cross_entropy(
    logits: Tensor, labels: Tensor, *, to: Resolution | None = None, first: int = 1, positive: float = 1.0
) -> Tensor:
    """Σ over channels of the binary cross-entropy, mean over all pixels; ignored ones (255) add 0.

    Channels below `first` take no part: 1 leaves out the background's, the number of old channels all of those. A
    pixel of class c is wanted at 1 by the sigmoid of c and at 0 by all others, any other pixel at 0 by all.
    `positive` weights what a class's own pixels add to its sigmoid's loss.

    >>> logits = torch.tensor([9.0, 0.0, 2.0]).view(1, 3, 1, 1)
    >>> round(float(binary_cross_entropy(logits, torch.tensor([[[2]]]))), 4)  # log 2 + log(1 + e⁻²)
    0.8201
    >>> round(float(binary_cross_entropy(logits, torch.tensor([[[2]]]), first=2, positive=3)), 4)  # 3 log(1 + e⁻²)
    0.3808
    """
    to = to or Resolution.of(*labels.shape[-2:])
    with without_autocast(logits), exact_products():
        if to.fused != "off":
            return chunked_binary(logits, labels, to, first, positive)
        pixels = to.upsample(full_precision(logits)[:, first:])
        channels = torch.arange(first, logits.shape[1], device=labels.device).view(1, -1, 1, 1)
        wanted = (labels.unsqueeze(1) == channels).to(pixels.dtype)
        weight = pixels.new_full((), positive)  # copies nothing from the host: CUDA graphs work
        error = F.binary_cross_entropy_with_logits(pixels, wanted, reduction="none", pos_weight=weight)
        return (error.sum(dim=1) * (labels != IGNORE)).mean()


def binary_distillation(logits: Tensor, teacher_logits: Tensor, *, to: Resolution | None = None) -> Tensor:
    """Σ over the teacher's foreground channels of the binary cross-entropy against its sigmoids; mean over all pixels.

    `teacher_logits` N × old × h × w gets no gradient.

    >>> student, teacher = torch.zeros(1, 3, 1, 1), torch.tensor([5.0, 0.0]).view(1, 2, 1, 1)
    >>> round(float(binary_distillation(student, teacher)), 4)  # log 2
    0.6931
    """
    to = to or Resolution.of(*logits.shape[-2:])
    with without_autocast(logits), exact_products():
        if to.fused != "off" and logits.shape[-2:] == teacher_logits.shape[-2:]:
            return chunked_binary_distillation(logits, teacher_logits, to)
        pixels = to.upsample(full_precision(logits)[:, 1 : teacher_logits.shape[1]])
        target = to.upsample(full_precision(teacher_logits.detach())[:, 1:]).sigmoid().to(pixels.dtype)
        error = F.binary_cross_entropy_with_logits(pixels, target, reduction="none")
        return error.sum(dim=1).mean()


def grouped_cross_entropy(task: Task) -> Pair:
    """Hard and soft loss of `task` (0 where not asked for), by the backend that `fused` asks for."""
    with without_autocast(task.logits):
        return choose(task)(task)


def choose(task: Task) -> Backend:
    """The backend for `task`: plain where `fused` is off or nothing can be gained."""
    fused, (height, width), (tall, wide) = task.to.fused, task.logits.shape[-2:], task.to.padded
    if fused == "off":
        return plain
    if task.teacher is not None and task.teacher.shape[-2:] != (height, width):
        if fused == "on":
            raise TissError(
                "on: teacher and student have logits of different size; use auto or off",
                setting="train.fused",
            )
        return plain
    if fused == "auto" and tall * wide < 4 * height * width:  # nearly full resolution: nothing to save
        return plain
    if task.logits.is_cuda and has_triton() and task.logits.dtype in KERNEL_TYPES:
        from tiss.losses.triton_pixels import fused_cross_entropy

        return fused_cross_entropy
    return chunked


def plain(task: Task) -> Pair:
    """The definition, with autograd's gradients, holding the logits at full resolution; any precision."""
    pixels, split = task.to.upsample(full_precision(task.logits)), task.split
    everything = torch.logsumexp(pixels, 1)
    hard = soft = pixels.new_zeros(())
    if task.labels is not None:
        labels, weights = task.labels.long(), task.image_weights
        ignored = labels == IGNORE
        chosen = pixels.gather(1, labels.masked_fill(ignored, 0).unsqueeze(1)).squeeze(1)
        if split > 1:
            chosen = torch.where(labels < split, torch.logsumexp(pixels[:, :split], 1), chosen)
        each = (everything - chosen).masked_fill(ignored, 0.0)
        hard = each.mean() if weights is None else (each.mean((1, 2)) * weights).mean()
    if task.teacher is not None:
        target = task.to.upsample(full_precision(task.teacher.detach())).softmax(1)
        background = pixels[:, 0]
        if pixels.shape[1] > split:
            background = torch.logaddexp(background, torch.logsumexp(pixels[:, split:], 1))
        others = pixels[:, 1:split] - everything.unsqueeze(1)
        soft = -(target[:, 0] * (background - everything) + (target[:, 1:] * others).sum(1)).mean()
    return hard, soft
