"""Self-training: background pixels take the old model's class where it is surer than usual."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

import tiss
from tiss import Batch, Method, Output, Settings, losses, setting


@dataclass(frozen=True)
class SelfTrainingSettings(Settings):
    distillation: float = setting(10.0, "weight of the unbiased distillation")
    momentum: float = setting(0.9, "momentum of the usual confidence")


@tiss.register_method("selftrain", "cross-entropy with the old model's surest labels + unbiased distillation")
class SelfTraining(Method):
    Settings = SelfTrainingSettings
    initialise = "background"  # new channels start from the background's
    uses_teacher = True  # from step 1 on, the old model's output comes with every batch

    def __init__(self, settings: SelfTrainingSettings, steps: int) -> None:
        super().__init__(settings, steps)
        self.usual = torch.tensor(0.5)

    def targets(self, batch: Batch, teacher: Output | None) -> Tensor:
        if teacher is None:  # step 0
            return batch.label
        confidence, label = teacher.pixels().float().softmax(dim=1).max(dim=1)  # N × H × W each
        pixels = torch.ones_like(confidence).sum()
        total = tiss.all_sum(torch.stack([confidence.sum(), pixels]))  # over all processes
        self.usual = self.usual.to(total.device)
        self.usual.lerp_(total[0] / total[1], 1 - self.settings.momentum)  # in place, for CUDA graphs
        taken = (batch.label == 0) & (confidence > self.usual)
        return torch.where(taken, label, batch.label)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        size = output.resolution
        terms = {"cross_entropy": losses.cross_entropy(output.logits, batch.label, to=size)}
        if teacher is not None:
            distilled = losses.unbiased_distillation(output.logits, teacher.logits, to=size)
            terms["distillation"] = self.settings.distillation * distilled
        return terms

    def state(self) -> dict[str, Tensor]:
        return {"usual": self.usual}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.usual = state.get("usual", self.usual)  # empty where step 0 came from another method
