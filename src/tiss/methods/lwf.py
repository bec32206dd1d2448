"""LwF and ILT: cross-entropy with plain distillation of the old model's outputs (and features)."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from tiss.config import setting
from tiss.data.base import Batch
from tiss.losses import cross_entropy, distillation
from tiss.methods.base import Method, Settings, register_method
from tiss.models.contract import Need, Output
from tiss.models.model import SegmentationModel


@dataclass(frozen=True)
class LwFSettings(Settings):
    distillation: float = setting(100.0, "weight of the distillation of the old channels")


@register_method("lwf", "learning without forgetting: cross-entropy + 100 · distillation", title="LwF")
class LwF(Method):
    Settings = LwFSettings
    uses_teacher = True

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        terms = {"cross_entropy": cross_entropy(output.logits, batch.label, to=output.resolution)}
        if teacher is not None:
            distilled = distillation(output.logits, teacher.logits, to=output.resolution)
            terms["distillation"] = self.settings.distillation * distilled
        return terms


@dataclass(frozen=True)
class ILTSettings(LwFSettings):
    features: float = setting(100.0, "weight of the mean-squared error of the encoder's output")


@register_method("ilt", "LwF + 100 · mean-squared error of the encoder's output", title="ILT")
class ILT(LwF):
    Settings = ILTSettings

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        return (-1,)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        terms = super().losses(batch, output, teacher)
        if teacher is not None:
            error = F.mse_loss(output.features[0].float(), teacher.features[0].float())
            terms["features"] = self.settings.features * error
        return terms
