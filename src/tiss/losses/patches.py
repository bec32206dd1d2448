"""Losses and measures on patch tokens N × n × D (no class or register token)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.losses.contrast import contrast, unit
from tiss.losses.precision import full_precision, without_autocast
from tiss.models.contract import Fused


def patch_contrast(
    tokens: Tensor, reference: Tensor, signed: bool = False, tau: float = 1.0, *, fused: Fused = "auto"
) -> Tensor:
    """Patch-wise contrast: cross-entropy of row i of P against i, P_ij = |cos(tokens_i, reference_j)| / tau.

    L_cd (contrastive distillation): tokens h_t^L, reference h_{t-1}^L. L_ct: tokens h_t^L, reference h_t^1.
    Both N × n × D; the gradient reaches both, so detach a teacher. `signed` keeps the cosine's sign.
    `fused="off"` holds the n × n matrices of all images until the backward pass.

    >>> import torch
    >>> round(float(patch_contrast(torch.eye(2)[None], torch.eye(2)[None])), 4)  # log(1 + 1/e)
    0.3133
    """
    if fused != "off":
        with without_autocast(tokens):
            return contrast(tokens, reference, signed, tau)
    similarity = _cosine(tokens, reference, signed) / tau
    target = torch.arange(similarity.shape[1], device=similarity.device).expand(similarity.shape[:2])
    return F.cross_entropy(similarity.flatten(0, 1), target.flatten())


def patch_similarity(tokens: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """S_positive and S_negative: the mean of P = |cos| over equal and over different patches of an image.

    Both arguments N × n × D; both results are means over the batch.

    >>> import torch
    >>> positive, negative = patch_similarity(torch.eye(2)[None], torch.eye(2)[None])
    >>> float(positive), float(negative)
    (1.0, 0.0)
    """
    similarity = _cosine(tokens, reference, signed=False)
    patches = similarity.shape[1]
    diagonal = similarity.diagonal(dim1=1, dim2=2)
    negative = (similarity.sum((1, 2)) - diagonal.sum(1)) / (patches * (patches - 1))
    return diagonal.mean(), negative.mean()


def feature_distillation(
    tokens: Sequence[Tensor],
    teacher_tokens: Sequence[Tensor],
    power: Literal[1, 2] = 1,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """L1 (`power=1`) or L2 (`power=2`) distance between two models' tokens, one tensor N × n × D a layer.

    `mean` over layers, images, patches and channels; `sum`, as the formula has it, over patches and channels,
    with the mean over layers and images. The teacher gets no gradient.

    >>> import torch
    >>> float(feature_distillation([torch.ones(1, 2, 3)], [torch.zeros(1, 2, 3)], power=2, reduction="sum"))
    6.0
    """
    layers = []
    for student, teacher in zip(tokens, teacher_tokens, strict=True):
        difference = full_precision(student) - full_precision(teacher.detach())
        distance = difference.abs() if power == 1 else difference.square()
        layers.append(distance.mean() if reduction == "mean" else distance.sum() / len(distance))
    return torch.stack(layers).mean()


def _cosine(tokens: Tensor, reference: Tensor, signed: bool) -> Tensor:
    """cos(tokens_i, reference_j) per image, N × n × n; without sign unless `signed`."""
    with without_autocast(tokens):
        cosine = unit(tokens) @ unit(reference).transpose(1, 2)
    return cosine if signed else cosine.abs()
