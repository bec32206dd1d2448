"""MiB, and MiB with L1 or L2 feature distillation (the paper's ablation)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from tiss.config import setting
from tiss.data.base import Batch
from tiss.losses import cross_entropy, feature_distillation, unbiased_losses
from tiss.methods.base import Method, Settings, register_method
from tiss.models.contract import Need, Output, tokens
from tiss.models.model import SegmentationModel

AT_ONCE, IN_SEQUENCE = 10.0, 30.0  # the paper's weight of the distillation, by how the new classes come


@dataclass(frozen=True)
class MiBSettings(Settings):
    distillation: float | None = setting(
        None,
        "weight of the unbiased distillation (None: 10 when the new classes come at once, 30 in sequence)",
    )
    divide: bool = setting(
        True, "divide the distillation by the number of old channels, as the published code does"
    )


@register_method("mib", "unbiased cross-entropy + λ · unbiased distillation + head growth")
class MiB(Method):
    """Eq. 1 to 6 of the paper."""

    Settings = MiBSettings
    initialise = "background"
    uses_teacher = True

    @property
    def distillation_weight(self) -> float:
        """λ: as set, else by the task."""
        if self.settings.distillation is not None:
            return float(self.settings.distillation)
        return AT_ONCE if self.steps <= 2 else IN_SEQUENCE

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        to = output.resolution
        if teacher is None:
            return {"cross_entropy": cross_entropy(output.logits, batch.label, to=to)}
        learnt, distilled = unbiased_losses(
            output.logits, batch.label, teacher.logits, self.settings.divide, to=to
        )
        return {"cross_entropy": learnt, "distillation": self.distillation_weight * distilled}


@dataclass(frozen=True)
class FeatureSettings(MiBSettings):
    features: float = setting(1.0, "weight of the feature distillation (the paper gives none)")
    reduction: Literal["mean", "sum"] = setting(
        "mean", "mean, or sum over patches and channels as the formula has it"
    )


class MiBWithFeatures(MiB):
    """MiB with the distance between student's and teacher's tokens after every block (Eq. 7 and 8)."""

    Settings = FeatureSettings
    power: ClassVar[Literal[1, 2]]
    families = ("vit", "hierarchical")
    refusal = "compares patch tokens, which only transformers have (take --method ilt or another encoder)"

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        return tuple(range(model.encoder.depth))

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        terms = super().losses(batch, output, teacher)
        if teacher is not None:
            student_tokens = [tokens(f) for f in output.features]
            teacher_tokens = [tokens(f) for f in teacher.features]
            distance = feature_distillation(
                student_tokens, teacher_tokens, power=self.power, reduction=self.settings.reduction
            )
            terms["features"] = self.settings.features * distance
        return terms


@register_method("mib+l1", "MiB + L1 distance of the tokens after every block")
class MiBWithL1(MiBWithFeatures):
    power = 1


@register_method("mib+l2", "MiB + L2 distance of the tokens after every block")
class MiBWithL2(MiBWithFeatures):
    power = 2
