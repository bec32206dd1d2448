"""The baselines: FT and offline (the bounds), LwF and ILT (plain distillation), and frozen (almost nothing)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.config import setting
from tiss.data.base import BACKGROUND, Batch
from tiss.losses import binary_cross_entropy, distillation, upsampled_argmax
from tiss.methods.base import Method, Settings, register_method
from tiss.models import Need, Output, SegmentationModel
from tiss.scenarios import Step


@register_method("ft", "fine-tuning: plain cross-entropy, new channels random; forgets", title="FT")
class FineTuning(Method):
    domains = True


@register_method("offline", "all classes at once, all labels: the upper bound")
class Offline(FineTuning):
    joint = True


@dataclass(frozen=True)
class LwFSettings(Settings):
    distillation: float = setting(100.0, "weight of the distillation of the old channels")


@register_method("lwf", "learning without forgetting: cross-entropy + 100 · distillation", title="LwF")
class LwF(Method):
    Settings = LwFSettings
    domains = True
    knobs = Method.knobs | {"method.distillation": (5.0, 500.0)}
    uses_teacher = True

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        terms = super().losses(batch, output, teacher)
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
    knobs = LwF.knobs | {"method.features": (5.0, 500.0)}

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        return (-1,)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        terms = super().losses(batch, output, teacher)
        if teacher is not None:
            error = F.mse_loss(output.features[0].float(), teacher.features[0].float())
            terms["features"] = self.settings.features * error
        return terms


@dataclass(frozen=True)
class FrozenSettings(Settings):
    confidence: float = setting(
        0.7, "background pixels where an old class's sigmoid is over this take that class"
    )


@register_method("frozen", "encoder and old head rows fixed after step 0; one sigmoid per class")
class Frozen(Method):
    """Freezes everything after step 0: it shows what the other methods gain over doing almost nothing."""

    Settings = FrozenSettings
    knobs = Method.knobs | {"method.confidence": (0.4, 0.95)}
    uses_teacher = True
    frozen = "everything"  # batch norm and stochastic depth too

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        super().begin(step, model, seed)
        model.rule = "sigmoid"
        if step.index > 0:
            model.requires_grad_(False)
            for parameters in model.head.growing():
                parameters[-1].requires_grad_(True)

    def targets(self, batch: Batch, teacher: Output | None) -> Tensor:
        confidence = self.settings.confidence
        if teacher is None or teacher.logits.shape[1] < 2 or confidence >= 1:  # no sigmoid is over 1
            return batch.label
        # the background's logit becomes one that only a sure class exceeds: a single argmax finds both
        logits = teacher.logits.float()
        least = math.log(confidence / (1 - confidence)) if confidence > 0 else -1e6  # all sigmoids are over 0
        sure = torch.full_like(logits[:, :1], least)
        found = upsampled_argmax(torch.cat([sure, logits[:, 1:]], dim=1), teacher.resolution)
        return torch.where(batch.label == BACKGROUND, found.to(batch.label.dtype), batch.label)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        return {"binary": binary_cross_entropy(output.logits, batch.label, to=output.resolution)}

    def base_settings(self) -> dict[str, Any]:
        return {"loss": "binary"}
