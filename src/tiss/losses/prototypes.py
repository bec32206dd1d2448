"""SDR's terms: features of a class gather around its prototype, classes keep apart, features grow sparse.

Features N × D × h × w, labels N × h × w at the features' resolution (see `prototype_labels`), 255 = ignore.
A prototype is the mean feature of a class over training; `Prototypes` is what a checkpoint keeps. No function
here looks at values on the host, so none of them waits for a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.data.base import BACKGROUND, IGNORE
from tiss.losses.upsampling import full_precision, without_autocast
from tiss.models import Resolution


@dataclass(frozen=True)
class Prototypes:
    """The running mean feature of each channel's class, K × D, and how many features went into it, K."""

    mean: Tensor
    count: Tensor

    @classmethod
    def empty(cls, classes: int, channels: int, device: torch.device | str = "cpu") -> Prototypes:
        return cls(torch.zeros(classes, channels, device=device), torch.zeros(classes, device=device))

    def update(self, sums: Tensor, counts: Tensor) -> Prototypes:
        """With the features of one more batch, given as `class_sums` (summed over all processes)."""
        count = self.count + counts
        mean = self.mean + (sums - counts.unsqueeze(1) * self.mean) / count.clamp(min=1).unsqueeze(1)
        return Prototypes(mean, count)


def prototype_labels(labels: Tensor, size: tuple[int, int], teacher_logits: Tensor | None = None) -> Tensor:
    """Labels N × H × W at the features' `size` (nearest); background pixels take the old model's argmax.

    >>> teacher = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1)
    >>> prototype_labels(torch.tensor([[[0, 0, 2, 2]]]), (1, 2), teacher).tolist()
    [[[1, 2]]]
    """
    small = _nearest(labels, size)
    if teacher_logits is None:
        return small
    return torch.where(small == BACKGROUND, _nearest(teacher_logits.argmax(1), size), small)


def centre_labels(labels: Tensor, size: tuple[int, int] | torch.Size, to: Resolution) -> Tensor:
    """Labels N × H × W at the features' `size`: that of the pixel at a position's centre, 255 in the padding.

    >>> centre_labels(torch.tensor([[[1, 2, 3, 4]]]), (1, 2), Resolution.of(1, 4)).tolist()
    [[[2, 4]]]
    """
    (height, width), (tall, wide) = to.size, to.padded
    labels = F.pad(labels, (0, wide - width, 0, tall - height), value=IGNORE)
    rows, columns = (
        (2 * torch.arange(count, device=labels.device) + 1) * side // (2 * count)
        for count, side in zip(size, to.padded, strict=True)
    )
    return labels[:, rows][:, :, columns]


def class_sums(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sum of the features of each class, K × D, and their number, K: what processes can add up.

    >>> sums, counts = class_sums(torch.tensor([[[[1.0, 2.0, 4.0]]]]), torch.tensor([[[0, 1, 1]]]), 2)
    >>> sums.tolist(), counts.tolist()
    ([[1.0], [6.0]], [1.0, 2.0])
    """
    rows = _rows(features)
    member = _members(labels, classes, rows.dtype)
    with without_autocast(rows):
        return member @ rows, member.sum(1)


def prototype_matching(features: Tensor, labels: Tensor, prototypes: Prototypes, old_classes: int) -> Tensor:
    """Mean over the old classes present (not the background) of mse(m_c, P_c), m_c the mean in the batch.

    >>> prototypes = Prototypes(torch.zeros(2, 1), torch.ones(2))
    >>> float(prototype_matching(torch.tensor([[[[1.0, 3.0]]]]), torch.ones(1, 1, 2).long(), prototypes, 2))
    4.0
    """
    sums, counts = class_sums(features, labels, len(prototypes.mean))
    means = sums / counts.clamp(min=1).unsqueeze(1)
    each = (means - prototypes.mean.detach()).square().mean(1)
    channel = torch.arange(len(counts), device=counts.device)
    chosen = (counts > 0) & (prototypes.count > 0) & (channel > BACKGROUND) & (channel < old_classes)
    return _mean_over(each, chosen)


def prototype_attraction(features: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
    """Mean over the classes present of the mse between their features and their prototype.

    >>> prototypes = Prototypes(torch.zeros(2, 1), torch.ones(2))
    >>> float(prototype_attraction(torch.tensor([[[[1.0, 3.0]]]]), torch.ones(1, 1, 2).long(), prototypes))
    5.0
    """
    rows = _rows(features)
    classes = len(prototypes.mean)
    member = _members(labels, classes, rows.dtype)
    own = prototypes.mean.detach().to(rows.dtype)[labels.flatten().clamp(max=classes - 1)]
    counts = member.sum(1)
    with without_autocast(rows):
        each = member @ (rows - own).square().mean(1) / counts.clamp(min=1)
    return _mean_over(each, (counts > 0) & (prototypes.count > 0))


def prototype_repulsion(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Mean over pairs of classes present of 1 / ‖m_i − m_j‖, m_c the batch's mean feature; 0 without a pair.

    >>> float(prototype_repulsion(torch.tensor([[[[1.0, 3.0]]]]), torch.tensor([[[0, 1]]]), 2))
    0.5
    """
    sums, counts = class_sums(features, labels, classes)
    means = sums / counts.clamp(min=1).unsqueeze(1)
    distance = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
    pair = torch.triu((counts > 0).unsqueeze(0) & (counts > 0).unsqueeze(1), diagonal=1) & (distance > 0)
    return _mean_over(1 / torch.where(pair, distance, torch.ones_like(distance)), pair)


def feature_sparsity(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Mean over labelled positions of Σ_j exp(f_j) / Σ_j f_j, f divided by the largest feature of its class.

    Only the positive part of f counts (all of it behind a ReLU, as published), and positions without any are
    left out: the ratio has no meaning there.

    >>> round(float(feature_sparsity(torch.full((1, 3, 1, 1), 2.0), torch.zeros(1, 1, 1).long(), 1)), 4)  # e
    2.7183
    """
    rows = _rows(features).relu()
    member = _members(labels, classes, rows.dtype) > 0
    largest = torch.where(member, rows.amax(1), torch.zeros_like(rows[:, 0])).amax(1)
    scale = largest[labels.flatten().clamp(max=classes - 1)]
    counted = member.any(0) & (rows.sum(1) > 0)
    scaled = rows / torch.where(counted, scale, torch.ones_like(scale)).unsqueeze(1)
    total = scaled.sum(1)
    return _mean_over(scaled.exp().sum(1) / torch.where(counted, total, torch.ones_like(total)), counted)


def _nearest(labels: Tensor, size: tuple[int, int]) -> Tensor:
    # float32 holds every label exactly
    return F.interpolate(labels.unsqueeze(1).float(), size, mode="nearest").squeeze(1).long()


def _rows(features: Tensor) -> Tensor:  # N × D × h × w to (N·h·w) × D
    return full_precision(features).permute(0, 2, 3, 1).flatten(0, 2)


def _members(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """1 where position p has class k, K × (N·h·w); ignored positions belong to none."""
    flat = labels.flatten()
    member = flat.unsqueeze(0) == torch.arange(classes, device=labels.device).unsqueeze(1)
    return (member & (flat != IGNORE)).to(dtype)


def _mean_over(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean of the chosen values, 0 where there are none; a value not chosen gets no gradient."""
    total = torch.where(chosen, values, torch.zeros_like(values)).sum()
    return total / chosen.sum().clamp(min=1)
