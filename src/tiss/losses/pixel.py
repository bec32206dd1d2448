"""The pixel losses: thin names over the grouped cross-entropy.

All take logits N × C × h × w at any resolution. `to` says how they become pixels; without it the labels' size
(or, for distillation, the logits' own) is meant. `old_classes` counts the background.
"""

from __future__ import annotations

from torch import Tensor

from tiss.losses.grouped import Task, grouped_cross_entropy
from tiss.models.contract import Resolution


def cross_entropy(
    logits: Tensor, labels: Tensor, *, to: Resolution | None = None, image_weights: Tensor | None = None
) -> Tensor:
    """Plain cross-entropy, mean over all pixels; ignored ones (255) add 0 and stay in the denominator.

    `labels` N × H × W; `image_weights` N multiplies each image's loss before the mean (PLOP).

    >>> import torch
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

    >>> import torch
    >>> logits = torch.zeros(1, 4, 1, 1)
    >>> round(float(unbiased_cross_entropy(logits, torch.tensor([[[0]]]), old_classes=3)), 4)  # −log ¾
    0.2877
    """
    to = to or Resolution.of(*labels.shape[-2:])
    task = Task(logits, old_classes, logits.shape[1], to, labels=labels, image_weights=image_weights)
    hard, _ = grouped_cross_entropy(task)
    assert hard is not None
    return hard


def unbiased_distillation(
    logits: Tensor, teacher_logits: Tensor, divide: bool = True, *, to: Resolution | None = None
) -> Tensor:
    """Unbiased distillation (L_unkd): the student's background is the background with all new classes.

    `teacher_logits` N × old × h × w gets no gradient. `divide` by `old`, as the published code does and the
    paper's formula does not. Mean over all pixels, ignored ones too.

    >>> import torch
    >>> student, teacher = torch.zeros(1, 3, 1, 1), torch.zeros(1, 2, 1, 1)
    >>> round(float(unbiased_distillation(student, teacher, divide=False)), 4)  # −½ log ⅔ − ½ log ⅓
    0.752
    """
    return _distil(logits, teacher_logits, logits.shape[1], divide, to)


def distillation(logits: Tensor, teacher_logits: Tensor, *, to: Resolution | None = None) -> Tensor:
    """Plain distillation (LwF): the student's softmax over the old channels; mean over channels and pixels.

    >>> import torch
    >>> student, teacher = torch.zeros(1, 3, 1, 1), torch.zeros(1, 2, 1, 1)
    >>> round(float(distillation(student, teacher)), 4)  # log 2 / 2
    0.3466
    """
    return _distil(logits, teacher_logits, teacher_logits.shape[1], True, to)


def unbiased_losses(
    logits: Tensor,
    labels: Tensor,
    teacher_logits: Tensor,
    divide: bool = True,
    *,
    to: Resolution | None = None,
    image_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`unbiased_cross_entropy` and `unbiased_distillation` at once: the fused paths share the student's part.

    `old_classes` is the teacher's number of channels. Without `to`, the labels' size is meant for both.

    >>> import torch
    >>> student, teacher = torch.zeros(1, 3, 1, 1), torch.zeros(1, 2, 1, 1)
    >>> hard, soft = unbiased_losses(student, torch.tensor([[[2]]]), teacher, divide=False)
    >>> round(float(hard), 4), round(float(soft), 4)
    (1.0986, 0.752)
    """
    old = teacher_logits.shape[1]
    to = to or Resolution.of(*labels.shape[-2:])
    task = Task(logits, old, logits.shape[1], to, labels, teacher_logits, image_weights)
    hard, soft = grouped_cross_entropy(task)
    assert hard is not None
    assert soft is not None
    return hard, soft / old if divide else soft


def _distil(logits: Tensor, teacher: Tensor, total: int, divide: bool, to: Resolution | None) -> Tensor:
    old = teacher.shape[1]
    to = to or Resolution.of(*logits.shape[-2:])
    _, soft = grouped_cross_entropy(Task(logits, old, total, to, teacher=teacher))
    assert soft is not None
    return soft / old if divide else soft
