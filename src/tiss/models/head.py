"""Heads: the last slot, one logit per class, growing by one group of classes per step.

The rows of each step are separate parameters, so that those of earlier steps can be frozen exactly, weight decay
included; the forward pass concatenates them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiss.registry import Registry

Initialise = Literal["background", "random"]


class Head(nn.Module):
    """Base of all heads: `rows` (k × D) and `biases` (k) for each group; the background is row 0."""

    def __init__(self, channels: int, sizes: Sequence[int]) -> None:
        """`sizes` are the logits of each group; the first counts the background."""
        super().__init__()
        self.channels = channels
        self.rows = nn.ParameterList(nn.Parameter(0.02 * torch.randn(size, channels)) for size in sizes)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)

    @property
    def classes(self) -> int:
        """The number of logits, the background's included."""
        return sum(len(bias) for bias in self.biases)

    def joined(self) -> tuple[Tensor, Tensor]:
        """All rows C × D and all biases C."""
        return torch.cat(list(self.rows)), torch.cat(list(self.biases))

    def group_parameters(self, group: int) -> list[nn.Parameter]:
        """The parameters of one step's classes (group 0 includes the background)."""
        return [parameters[group] for parameters in self.growing()]

    def growing(self) -> list[nn.ParameterList]:
        """The lists that get an entry with every group."""
        return [self.rows, self.biases]

    @torch.no_grad()
    def grow(self, new: int, initialise: Initialise, generator: torch.Generator) -> None:
        """Adds `new` rows.

        "background": w_new = w_b, β_new = β_b − log(new + 1), and β_b gets the same value. Then the
        background and the new classes together have the probability that the background had, and that of no
        other class changes.
        "random": new rows as at the start, biases 0, the background unchanged.
        """
        if initialise == "background":
            for biases in self.split_biases():
                biases[0][0] -= math.log(new + 1)
            added = [p[0][:1].expand(new, *p[0].shape[1:]).clone() for p in self.growing()]
        else:
            random = 0.02 * torch.randn(new, self.channels, generator=generator)
            added = [random.to(self.rows[0]), *(p[0].new_zeros(new) for p in self.growing()[1:])]
        for parameters, values in zip(self.growing(), added, strict=True):
            parameters.append(nn.Parameter(values))

    def split_biases(self) -> list[nn.ParameterList]:
        """The lists whose entry for the background is divided among it and the new classes."""
        return [self.biases]


HEADS: Registry[type[Head]] = Registry("head", "heads", ("tiss.models.mask",))


@HEADS.register("linear")
class LinearHead(Head):
    """One linear layer: N × D × h × w to N × C × h × w."""

    def forward(self, decoded: Tensor) -> Tensor:
        rows, biases = self.joined()
        return F.conv2d(decoded, rows[:, :, None, None], biases)


@HEADS.register("cosine")
class CosineHead(Head):
    """z_c = s · cos(w_c, x) + β_c with a learned scale s; the bias makes its growth exact."""

    def __init__(self, channels: int, sizes: Sequence[int]) -> None:
        super().__init__(channels, sizes)
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, decoded: Tensor) -> Tensor:
        rows, biases = self.joined()
        rows = self.scale * F.normalize(rows, dim=1)
        return F.conv2d(F.normalize(decoded, dim=1), rows[:, :, None, None], biases)
