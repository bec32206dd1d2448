"""The simple baseline: freeze everything after step 0 and learn one sigmoid for each new class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiss.config import setting
from tiss.data.base import BACKGROUND, IGNORE, Batch
from tiss.methods.base import Batches, Method, Settings, register_method
from tiss.models.contract import Output
from tiss.models.model import SegmentationModel
from tiss.scenarios.scenario import Step


@dataclass(frozen=True)
class FrozenSettings(Settings):
    confidence: float = setting(
        0.7, "background pixels where an old class's sigmoid is over this take that class"
    )


@register_method("frozen", "encoder and old head rows fixed after step 0; one sigmoid a class")
class Frozen(Method):
    """Not in the paper: needed to know whether anything above it earns its cost."""

    Settings = FrozenSettings
    uses_teacher = True

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        super().begin(step, model, seed)
        model.rule = "sigmoid"
        if step.index > 0:
            model.requires_grad_(False)
            for parameter in model.head.group_parameters(-1):
                parameter.requires_grad_(True)

    def train_mode(self, model: nn.Module) -> None:
        """Batch norm and stochastic depth are frozen with the rest."""
        model.train(self.step is None or self.step.index == 0)

    def targets(self, batch: Batch, teacher: Output | None) -> Tensor:
        if teacher is None or teacher.logits.shape[1] < 2:
            return batch.label
        confidence, old_class = torch.sigmoid(teacher.pixels()[:, 1:].float()).max(dim=1)
        taken = (batch.label == BACKGROUND) & (confidence > self.settings.confidence)
        return torch.where(taken, old_class + 1, batch.label)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        label = batch.label
        logits = output.pixels()[:, 1:].float()  # a sigmoid for each foreground class; channel 0 has none
        channels = torch.arange(1, logits.shape[1] + 1, device=label.device).view(1, -1, 1, 1)
        wanted = (label.unsqueeze(1) == channels).to(logits.dtype)
        error = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(dim=1)
        return {"binary": (error * (label != IGNORE)).mean()}

    def end(self, step: Step, model: SegmentationModel, batches: Batches) -> None:
        model.requires_grad_(True)

    def base_settings(self) -> dict[str, Any]:
        return {"loss": "binary"}
