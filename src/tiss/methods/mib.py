"""MiB, MiB with L1 or L2 feature distillation (the paper's ablation), and MiB with frozen batch norm."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from tiss.config import setting
from tiss.data.base import Batch
from tiss.errors import TissError
from tiss.losses import feature_distillation, unbiased_losses
from tiss.methods.base import Method, Settings, batch_norms, register_method
from tiss.models import Need, Output, SegmentationModel, tokens

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


@register_method("mib", "unbiased cross-entropy + λ · unbiased distillation + head growth", title="MiB")
class MiB(Method):
    """Eq. 1 to 6 of the paper."""

    Settings = MiBSettings
    knobs = Method.knobs | {"method.distillation": (3.0, 300.0)}
    initialise = "background"
    uses_teacher = True

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        if teacher is None:
            return super().losses(batch, output, teacher)
        divide = self.settings.divide
        hard, distilled = unbiased_losses(
            output.logits, batch.label, teacher.logits, divide, to=output.resolution
        )
        weight = self.settings.distillation
        if weight is None:
            weight = AT_ONCE if self.steps <= 2 else IN_SEQUENCE
        return {"cross_entropy": hard, "distillation": float(weight) * distilled}


@dataclass(frozen=True)
class FeatureSettings(MiBSettings):
    features: float = setting(1.0, "weight of the feature distillation (the paper gives none)")
    reduction: Literal["mean", "sum"] = setting(
        "mean", "over patches and channels: mean, or sum as in Eq. 7 and 8 (which wants a far smaller weight)"
    )


class MiBWithFeatures(MiB):
    """MiB with the distance between student's and teacher's tokens after every block (Eq. 7 and 8).

    The default reduction, `mean`, has a weight that does not depend on the image size or the width.
    """

    Settings = FeatureSettings
    knobs = MiB.knobs | {"method.features": (0.1, 10.0)}
    power: ClassVar[Literal[1, 2]]
    families = ("vit", "hierarchical")
    refusal = "compares patch tokens, which only transformers have (take ilt or another encoder)"

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        return tuple(range(model.encoder.depth))

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        terms = super().losses(batch, output, teacher)
        if teacher is not None:
            student, old = ([tokens(f) for f in each.features] for each in (output, teacher))
            distance = feature_distillation(student, old, self.power, self.settings.reduction)
            terms["features"] = self.settings.features * distance
        return terms


@register_method("mib+l1", "MiB + L1 distance of the tokens after every block", title="MiB+L1")
class MiBWithL1(MiBWithFeatures):
    power = 1


@register_method("mib+l2", "MiB + L2 distance of the tokens after every block", title="MiB+L2")
class MiBWithL2(MiBWithFeatures):
    power = 2


@register_method(
    "mib+frozenbn", "MiB; batch norm, statistics and weights, frozen after step 0", title="MiB (frozen BN)"
)
class MiBFrozenBatchNorm(MiB):
    """Works with any model that has a batch norm: all CNNs, and transformers with SegFormer's or DeepLab's decoder.

    A transformer with a linear decoder has none: the pair would be plain MiB under another name.
    """

    families = ("hierarchical", "cnn")  # their own decoders have batch norms
    frozen = "norms"

    def check(self, model: SegmentationModel) -> None:
        if not batch_norms(model):
            raise TissError(
                f"{self.name}: {model.architecture.encoder} with {model.architecture.decoder} has no batch norm "
                "to freeze (take mib, or a decoder with one)",
                setting="method",
            )
