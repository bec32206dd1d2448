"""A method of one's own: background pixels take the old model's class where it is surer than it usually is.

How sure is usual is a running mean for each old class, kept in the checkpoint and equal in all processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tiss.config import setting
from tiss.data.base import BACKGROUND, Batch
from tiss.losses import cross_entropy, unbiased_distillation
from tiss.methods.base import Method, Settings, all_sum, register_method
from tiss.models.contract import Output
from tiss.models.model import SegmentationModel
from tiss.scenarios.scenario import Step


@dataclass(frozen=True)
class SelfTrainingSettings(Settings):
    distillation: float = setting(10.0, "weight of the unbiased distillation")
    momentum: float = setting(0.9, "how slowly the usual confidence follows")


@register_method("selftrain", "cross-entropy with the old model's surest labels + unbiased distillation")
class SelfTraining(Method):
    Settings = SelfTrainingSettings
    initialise = "background"  # new channels start from the background's
    uses_teacher = True  # from step 1 on, the old model's output comes with every batch

    def __init__(self, settings: Any, steps: int) -> None:
        super().__init__(settings, steps)
        self.usual: Tensor | None = None  # confidence, one number for each old channel

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        super().begin(step, model, seed)  # grows the head
        self.usual = torch.full((step.old,), 0.5)

    def targets(self, batch: Batch, teacher: Output | None) -> Tensor:
        if teacher is None:
            return batch.label
        sure, known = teacher.pixels().float().softmax(dim=1).max(dim=1)  # N × H × W each
        usual = self._follow(sure, known)
        taken = (batch.label == BACKGROUND) & (sure > usual[known])
        return torch.where(taken, known, batch.label)

    def _follow(self, sure: Tensor, known: Tensor) -> Tensor:
        """Moves the usual confidence of every class in this batch a little towards its mean there."""
        assert self.usual is not None, "begin() comes first"
        self.usual = self.usual.to(sure.device)
        one_hot = torch.stack([known == channel for channel in range(len(self.usual))]).flatten(1).float()
        sums = all_sum(torch.stack([one_hot @ sure.flatten(), one_hot.sum(1)]))  # 2 × old, over all processes
        mean = sums[0] / sums[1].clamp(min=1)
        followed = torch.lerp(mean, self.usual, self.settings.momentum)
        self.usual.copy_(torch.where(sums[1] > 0, followed, self.usual))  # in place, for CUDA graphs
        return self.usual

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        terms = {"cross_entropy": cross_entropy(output.logits, batch.label, to=output.resolution)}
        if teacher is not None:
            distilled = unbiased_distillation(output.logits, teacher.logits, to=output.resolution)
            terms["distillation"] = self.settings.distillation * distilled
        return terms

    def state(self) -> dict[str, Tensor]:
        return {} if self.usual is None else {"usual": self.usual}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.usual = state.get("usual")
