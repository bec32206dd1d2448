"""DKD: the old model's evidence for and against each class is distilled, not only their sum.

Baek et al., "Decomposed Knowledge Distillation for Class-Incremental Semantic Segmentation", NeurIPS 2022
(arXiv:2210.05941); weights and details as in the published settings.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.config import setting
from tiss.data.base import Batch
from tiss.losses import binary_cross_entropy, binary_distillation
from tiss.losses.upsampling import full_precision
from tiss.methods.base import Method, Settings, register_method
from tiss.models import Need, Output, SegmentationModel
from tiss.scenarios import Step

# published weights of a class's own pixels, at step 0 and later
POSITIVE = {"voc": 2.0, "ade20k": 35.0}
POSITIVE_LATER = {"voc": 1.0, "ade20k": 35.0}


@dataclass(frozen=True)
class DKDSettings(Settings):
    distillation: float = setting(5.0, "weight of the distillation of the old sigmoids (KD)")
    reasoning: float = setting(5.0, "weight of the distillation of both reasoning scores (DKD)")
    auxiliary: float = setting(
        1.0, "weight of the auxiliary classifier's loss (AC; 0: new rows start at random)"
    )
    positive: float | None = setting(
        None, "weight of a class's own pixels in its loss (None: 2 at step 0 and 1 later, ADE20K 35)"
    )


@register_method(
    "dkd",
    "binary cross-entropy of the new classes + distillation of the reasons for and against old ones",
    title="DKD",
)
class DKD(Method):
    """The loss is mBCE + 5 · KD + 5 · DKD + AC; at step 0, mBCE + AC.

    The background's row is the auxiliary classifier: it learns to deny every pixel, on detached features, and the
    rows of new classes start as its copies. A pixel is background where no class's sigmoid exceeds .5. Batch norms
    are frozen after step 0.

    The published code counts void pixels as negatives; here they are ignored, as everywhere. It also leaves the old
    parameters without weight decay, which is the recipe's here.
    """

    Settings = DKDSettings
    knobs = Method.knobs | {"method.distillation": (0.5, 50.0), "method.reasoning": (0.5, 50.0)}
    uses_teacher = True
    heads = ("linear",)  # whose sums it takes apart
    frozen = "norms"
    old_rows: Tensor  # of the old classes, as they were before the step

    def __init__(self, settings: Any, steps: int) -> None:
        super().__init__(settings, steps)
        self.initialise = "copy" if settings.auxiliary else "random"  # type: ignore[misc]

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        return ("decoder",)

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        self.old_rows = model.head.joined()[0][1:].detach().clone()
        super().begin(step, model, seed)
        model.rule = "sigmoid"

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        weights, to, features = self.settings, output.resolution, full_precision(output.features[0])
        positive = self.published(weights.positive, POSITIVE_LATER if self.step.index > 0 else POSITIVE)
        rows, biases = self.model.head.joined()
        negative = F.conv2d(features.detach(), rows[:1, :, None, None], biases[:1])
        terms = {
            "cross_entropy": binary_cross_entropy(
                output.logits, batch.label, to=to, first=self.step.old, positive=positive
            ),
            "auxiliary": weights.auxiliary * F.softplus(to.upsample(negative)).mean(),
        }
        if teacher is not None:
            distilled = binary_distillation(output.logits, teacher.logits, to=to)
            terms["distillation"] = weights.distillation * distilled
            reasons = reasoning_distillation(
                features,
                rows[1 : self.step.old],
                full_precision(teacher.features[0]),
                self.old_rows.to(rows.device),
            )
            terms["reasoning"] = weights.reasoning * reasons
        return terms

    def base_settings(self) -> dict[str, Any]:
        return {"loss": "dkd", "positive": self.settings.positive, "auxiliary": self.settings.auxiliary}


def reasoning_scores(features: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The positive and the negative terms of Σ_i w_i · f_i, summed apart: z = z⁺ + z⁻ + the bias.

    `features` N × D × h × w and `rows` K × D give z⁺ ≥ 0 and z⁻ ≤ 0, N × K × h × w each. The paper's features come
    from a ReLU, so the sign of a term is its weight's; a ViT's have both signs, and the sign is the product's.

    >>> features, rows = torch.tensor([3.0, -1.0]).view(1, 2, 1, 1), torch.tensor([[1.0, 2.0]])
    >>> [float(score) for score in reasoning_scores(features, rows)]
    [3.0, -2.0]
    """
    above, below = features.clamp(min=0), features.clamp(max=0)
    both, crossed = torch.cat([above, below], dim=1), torch.cat([below, above], dim=1)
    weights = torch.cat([rows.clamp(min=0), rows.clamp(max=0)], dim=1)[:, :, None, None]
    return F.conv2d(both, weights), F.conv2d(crossed, weights)


def reasoning_distillation(features: Tensor, rows: Tensor, old_features: Tensor, old_rows: Tensor) -> Tensor:
    """Σ over old classes of BCE(σ(z⁺), σ(z′⁺)) + BCE(σ(z⁻), σ(z′⁻)), mean over positions; z′ are the old model's.

    Features N × D × h × w, rows K × D; the old ones get no gradient.

    >>> features, rows = torch.tensor([3.0, -1.0]).view(1, 2, 1, 1), torch.tensor([[1.0, 2.0]])
    >>> round(float(reasoning_distillation(0 * features, rows, features, rows)), 4)  # 2 log 2
    1.3863
    """
    with torch.no_grad():
        targets = [score.sigmoid() for score in reasoning_scores(old_features, old_rows)]
    losses = [
        F.binary_cross_entropy_with_logits(score, target, reduction="none").sum(dim=1).mean()
        for score, target in zip(reasoning_scores(features, rows), targets, strict=True)
    ]
    return losses[0] + losses[1]
