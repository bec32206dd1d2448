"""MiB, MiB with L1 or L2 feature distillation (the paper's ablation), and MiB with frozen batch norm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tiss.config import setting
from tiss.data.base import Batch
from tiss.errors import TissError
from tiss.losses import cross_entropy, feature_distillation, unbiased_losses
from tiss.methods.base import Batches, Method, Settings, register_method
from tiss.models.contract import Need, Output, tokens
from tiss.models.model import SegmentationModel
from tiss.scenarios.scenario import Step

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
        hard, distilled = unbiased_losses(
            output.logits, batch.label, teacher.logits, self.settings.divide, to=to
        )
        return {"cross_entropy": hard, "distillation": self.distillation_weight * distilled}


@dataclass(frozen=True)
class FeatureSettings(MiBSettings):
    features: float = setting(1.0, "weight of the feature distillation (the paper gives none)")
    reduction: Literal["mean", "sum"] = setting(
        "mean", "over patches and channels: mean, or sum as in Eq. 7 and 8 (which wants a far smaller weight)"
    )


class MiBWithFeatures(MiB):
    """MiB with the distance between student's and teacher's tokens after every block.

    Eq. 7 and 8 sum over patches and channels: `reduction="sum"`. The default, `mean`, is the same distance with a
    weight that does not depend on the image size or the width.
    """

    Settings = FeatureSettings
    power: ClassVar[Literal[1, 2]]
    families = ("vit", "hierarchical")
    refusal = "compares patch tokens, which only transformers have (take ilt or another encoder)"

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


@register_method("mib+l1", "MiB + L1 distance of the tokens after every block", title="MiB+L1")
class MiBWithL1(MiBWithFeatures):
    power = 1


@register_method("mib+l2", "MiB + L2 distance of the tokens after every block", title="MiB+L2")
class MiBWithL2(MiBWithFeatures):
    power = 2


def batch_norms(model: nn.Module) -> Iterator[_BatchNorm]:
    """Every batch norm in `model`, of any dimension, synchronised or not."""
    return (module for module in model.modules() if isinstance(module, _BatchNorm))


def freeze_statistics(model: nn.Module) -> None:
    """Puts every batch norm into evaluation mode; the next `train()` of the model undoes it."""
    for norm in batch_norms(model):
        norm.eval()


@register_method(
    "mib+frozenbn", "MiB; batch norm, statistics and weights, frozen after step 0", title="MiB (frozen BN)"
)
class MiBFrozenBatchNorm(MiB):
    """Works with any model that has a batch norm: all CNNs, and transformers whose decoder has one.

    SegFormer's decoder and DeepLab's have one on any encoder. A linear decoder on a transformer has none, and the
    pair is refused because it would be plain MiB under another name.
    """

    families = ("hierarchical", "cnn")  # their own decoders have batch norms

    def check(self, model: SegmentationModel) -> None:
        if next(batch_norms(model), None) is None:
            raise TissError(
                f"{self.name}: {model.architecture.encoder} with {model.architecture.decoder} has no batch norm "
                "to freeze (take mib, or a decoder with one)",
                setting="method",
            )

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        super().begin(step, model, seed)
        if step.index > 0:
            for norm in batch_norms(model):
                norm.requires_grad_(False)

    def train_mode(self, model: nn.Module) -> None:
        super().train_mode(model)
        if self.step.index > 0:
            freeze_statistics(model)

    def end(self, step: Step, model: SegmentationModel, batches: Batches) -> None:
        model.requires_grad_(True)
