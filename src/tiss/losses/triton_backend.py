"""The grouped cross-entropy and the argmax by Triton kernels: launches and autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tiss.losses import triton_kernels as kernels
from tiss.losses.grouped import Pair, Task
from tiss.models.contract import Resolution

LARGEST_SIDE = 16  # of a tile, in pixels; larger cells are cut into parts
ELEMENTS = 1024  # logits that a program's single warp holds at a time


@dataclass(frozen=True)
class Tiling:
    """How pixels are shared out to programs."""

    images: int
    tokens: tuple[int, int]
    padded: tuple[int, int]
    size: tuple[int, int]

    @classmethod
    def of(cls, student: Tensor, to: Resolution) -> Tiling:
        """For logits N × h × w × C."""
        return cls(student.shape[0], (student.shape[1], student.shape[2]), to.padded, to.size)

    def parts(self, axis: int) -> int:
        """Tiles in a cell along an axis."""
        return -(-self._cell(axis) // LARGEST_SIDE)

    def side(self, axis: int) -> int:
        """Pixels of a tile along an axis, a power of two."""
        return 1 << (min(self._cell(axis), LARGEST_SIDE) - 1).bit_length()

    def _cell(self, axis: int) -> int:
        return -(-self.padded[axis] // self.tokens[axis])

    @property
    def programs(self) -> int:
        rows, columns = self.tokens
        return self.images * (rows + 1) * self.parts(0) * (columns + 1) * self.parts(1)

    @property
    def pixels(self) -> int:
        """Pixels of a tile."""
        return self.side(0) * self.side(1)

    def sizes(self) -> tuple[int, ...]:
        return (*self.tokens, *self.padded, *self.size)

    def constants(self) -> dict[str, int]:
        return {
            "PARTS_Y": self.parts(0),
            "PARTS_X": self.parts(1),
            "ROWS": self.side(0),
            "COLUMNS": self.side(1),
            "CLASSES": min(32, max(4, ELEMENTS // self.pixels)),
            "num_warps": 1,
        }


def fused_cross_entropy(task: Task) -> Pair:
    """Hard and soft loss of `task` on a GPU, never holding logits of pixels."""
    hard, soft = _Fused.apply(task.logits, task)
    return (hard if task.labels is not None else None), (soft if task.teacher is not None else None)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, task: Task) -> tuple[Tensor, Tensor]:
        student = _channels_last(logits.detach())
        # What is not asked for is never read: the logits stand in for it.
        teacher = student if task.teacher is None else _channels_last(task.teacher.detach())
        labels = student if task.labels is None else task.labels.contiguous()
        weights = student if task.image_weights is None else task.image_weights.detach().float().contiguous()
        ctx.plan = plan = _Plan.of(student, task)
        statistics, hard, soft = plan.forward(student, teacher, labels, weights)
        ctx.save_for_backward(student, teacher, labels, weights, statistics)
        return hard, soft

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, hard: Tensor, soft: Tensor) -> tuple[Tensor, None]:
        return ctx.plan.backward(*ctx.saved_tensors, torch.stack([hard, soft])), None


@dataclass(frozen=True)
class _Plan:
    """What forward and backward share, apart from tensors."""

    tiling: Tiling
    channels: int
    split: int
    total: int
    flags: dict[str, bool]

    @classmethod
    def of(cls, student: Tensor, task: Task) -> _Plan:
        flags = {
            "HARD": task.labels is not None,
            "SOFT": task.teacher is not None,
            "WEIGHTED": task.image_weights is not None,
        }
        return cls(Tiling.of(student, task.to), student.shape[3], task.split, task.total, flags)

    def forward(
        self, student: Tensor, teacher: Tensor, labels: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-sums of every tile's pixels, and both losses."""
        programs = self.tiling.programs
        statistics = student.new_empty(programs, 3, self.tiling.pixels, dtype=torch.float32)
        losses = student.new_zeros(2, programs, dtype=torch.float32)
        kernels.forward_kernel[(programs,)](
            student, teacher, labels, weights, statistics, losses, *self._sizes(), **self._constants()
        )
        return statistics, losses[0].sum(), losses[1].sum()

    def backward(
        self,
        student: Tensor,
        teacher: Tensor,
        labels: Tensor,
        weights: Tensor,
        statistics: Tensor,
        upstream: Tensor,
    ) -> Tensor:
        """Gradient of the logits, N × C × h × w, in memory with the channels last."""
        programs, (height, width) = self.tiling.programs, self.tiling.tokens
        partial = statistics.new_empty(programs, 4, self.total)
        kernels.backward_kernel[(programs,)](
            student,
            teacher,
            labels,
            weights,
            statistics,
            upstream,
            partial,
            *self._sizes(),
            **self._constants(),
        )
        # Channels that take no part are never written.
        gradient = torch.empty_like(student) if self.channels == self.total else torch.zeros_like(student)
        kernels.gather_kernel[(self.tiling.images * height * width,)](
            partial, gradient, self.channels, self.total, height, width,
            PARTS_Y=self.tiling.parts(0), PARTS_X=self.tiling.parts(1), CLASSES=64, num_warps=1,
        )  # fmt: skip
        return gradient.permute(0, 3, 1, 2)

    def _sizes(self) -> tuple[float, ...]:
        scale = 1 / (self.tiling.images * self.tiling.size[0] * self.tiling.size[1])
        return (scale, self.channels, self.split, self.total, *self.tiling.sizes())

    def _constants(self) -> dict[str, int]:
        return self.tiling.constants() | self.flags


def argmax(logits: Tensor, resolution: Resolution, kind: torch.dtype) -> Tensor:
    """Channel of the largest upsampled logit, N × H × W."""
    student = _channels_last(logits)
    tiling = Tiling.of(student, resolution)
    result = torch.empty(len(logits), *resolution.size, dtype=kind, device=logits.device)
    kernels.argmax_kernel[(tiling.programs,)](
        student, result, student.shape[3], *tiling.sizes(), **tiling.constants()
    )
    return result


def _channels_last(logits: Tensor) -> Tensor:
    """N × C × h × w to N × h × w × C, without a copy where a linear layer over tokens made it."""
    return logits.permute(0, 2, 3, 1).contiguous()
