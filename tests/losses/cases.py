"""Sizes at which the fused paths must agree with the definition, and how to compare; needs no pytest."""

from dataclasses import dataclass, replace

import torch

from tiss.losses.chunked import Task
from tiss.losses.pixel import plain
from tiss.models import Resolution


@dataclass(frozen=True)
class Case:
    images: int
    old: int
    new: int
    tokens: tuple[int, int]
    size: tuple[int, int]
    padded: tuple[int, int]
    ignored: float = 0.2
    spread: float = 4.0

    def make(self, seed=0, kind=torch.float32, device="cpu"):
        """A task with both losses, in `kind`."""
        generator = torch.Generator().manual_seed(seed)
        channels = self.old + self.new
        logits = torch.randn(self.images, channels, *self.tokens, generator=generator) * self.spread
        teacher = torch.randn(self.images, self.old, *self.tokens, generator=generator) * self.spread
        labels = torch.randint(0, channels, (self.images, *self.size), generator=generator)
        labels[torch.rand(labels.shape, generator=generator) < self.ignored] = 255
        weights = torch.rand(self.images, generator=generator)
        return Task(
            logits.to(device, kind),
            self.old,
            Resolution(self.size, self.padded),
            labels.to(device),
            teacher.to(device, kind),
            weights.to(device),
        )


CASES = {
    "patch 16": Case(1, 3, 2, (2, 2), (32, 32), (32, 32)),
    "odd size": Case(1, 16, 5, (1, 2), (13, 17), (13, 17)),
    "no multiple of the patch": Case(2, 4, 3, (1, 2), (11, 20), (14, 28)),
    "one new class": Case(1, 15, 1, (2, 1), (16, 8), (16, 8)),
    "one old class": Case(1, 1, 6, (1, 2), (8, 16), (8, 16)),
    "no new class": Case(1, 6, 0, (1, 2), (8, 7), (8, 8)),
    "151 classes": Case(1, 101, 50, (1, 2), (16, 32), (16, 32)),
    "large cells": Case(1, 3, 2, (1, 1), (40, 9), (40, 9)),
    "fewer pixels than tokens": Case(1, 2, 2, (2, 1), (1, 3), (1, 3)),
    "everything ignored": Case(1, 3, 2, (1, 1), (4, 4), (4, 4), ignored=1.0),
    "logits far apart": Case(1, 3, 2, (1, 2), (8, 8), (8, 8), spread=200.0),
}


def evaluate(backend, task, weights=(1.0, 3.0), channels_last=False):
    """Hard loss, soft loss, and the gradient of their weighted sum, in float64."""
    logits = task.logits.clone()
    if channels_last:
        logits = logits.contiguous(memory_format=torch.channels_last)
    logits.requires_grad_()
    hard, soft = backend(replace(task, logits=logits))
    (gradient,) = torch.autograd.grad(weights[0] * hard + weights[1] * soft, logits)
    return float(hard.detach()), float(soft.detach()), gradient.double()


def in_double(task):
    """The same task in float64, on its device."""
    weights = None if task.image_weights is None else task.image_weights.double()
    return replace(task, logits=task.logits.double(), teacher=task.teacher.double(), image_weights=weights)


def errors(backend, task, channels_last=False):
    """Against float64: relative errors of both losses, and the gradient's as part of its largest entry."""
    exact = evaluate(plain, in_double(task))
    found = evaluate(backend, task, channels_last=channels_last)
    values = [abs(a - b) / max(abs(a), 0.1) for a, b in zip(exact[:2], found[:2], strict=True)]
    largest = float(exact[2].abs().max())
    return {
        "hard": values[0],
        "soft": values[1],
        "gradient": float((exact[2] - found[2]).abs().max()) / max(largest, 1e-12),
    }
