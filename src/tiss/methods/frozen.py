"""The simple baseline: freeze everything after step 0 and train one sigmoid per new class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tiss.config import setting
from tiss.data.base import BACKGROUND, Batch
from tiss.losses import binary_cross_entropy, upsampled_argmax
from tiss.methods.base import Batches, Method, Settings, register_method
from tiss.models.contract import Output
from tiss.models.model import SegmentationModel
from tiss.scenarios.scenario import Step

LOW = -1e6  # a logit that every class exceeds: all sigmoids are over 0


@dataclass(frozen=True)
class FrozenSettings(Settings):
    confidence: float = setting(
        0.7, "background pixels where an old class's sigmoid is over this take that class"
    )


@register_method("frozen", "encoder and old head rows fixed after step 0; one sigmoid per class")
class Frozen(Method):
    """Not in the paper: it shows what the other methods gain over doing almost nothing."""

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
        model.train(self.step.index == 0)

    def targets(self, batch: Batch, teacher: Output | None) -> Tensor:
        confidence = self.settings.confidence
        if teacher is None or teacher.logits.shape[1] < 2 or confidence >= 1:  # no sigmoid is over 1
            return batch.label
        # the background's logit becomes one that only a sure class exceeds: a single argmax finds both
        logits = teacher.logits.float()
        least = math.log(confidence / (1 - confidence)) if confidence > 0 else LOW
        sure = torch.full_like(logits[:, :1], least)
        found = upsampled_argmax(torch.cat([sure, logits[:, 1:]], dim=1), teacher.resolution)
        return torch.where(batch.label == BACKGROUND, found.to(batch.label.dtype), batch.label)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        return {"binary": binary_cross_entropy(output.logits, batch.label, to=output.resolution)}

    def end(self, step: Step, model: SegmentationModel, batches: Batches) -> None:
        model.requires_grad_(True)

    def base_settings(self) -> dict[str, Any]:
        return {"loss": "binary"}
