"""MBS: a background that hides old and new classes is trusted only where the old model is sure of it.

Park et al., "Mitigating Background Shift in Class-Incremental Semantic Segmentation", ECCV 2024 (arXiv 2407.11859).

The equations below were read off the published code and the paper's abstract, since the paper's full text was not at
hand: terms have the paper's names and no equation numbers. As in all our methods the cross-entropy is a mean over all
pixels, where the published code leaves ignored ones out, and a patch has the label of the pixel at its centre, not of
its first pixel. The published results select the checkpoint on the test images; here the last one counts.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.config import setting
from tiss.data.base import BACKGROUND, IGNORE, Batch
from tiss.losses import centre_labels, cross_entropy
from tiss.losses.upsampling import full_precision
from tiss.methods.base import Method, Settings, register_method
from tiss.models import Need, Output, Resolution, SegmentationModel

DISTILLATION = {"voc": 25.0, "ade20k": 50.0}  # published weights


@dataclass(frozen=True)
class MBSSettings(Settings):
    distillation: float | None = setting(
        None, "weight of the label-guided output distillation (None: 25, ADE20K 50)"
    )
    features: float = setting(1.0, "weight of the adaptive feature distillation")
    orthogonal: float = setting(1.0, "weight of the orthogonal loss of the class tokens")
    confidence: float = setting(
        0.7, "background pixels where an old class's probability is at least this take that class"
    )


@register_method(
    "mbs",
    "selective pseudo-labels + adaptive feature and label-guided output distillation + orthogonal class tokens",
    title="MBS",
)
class MBS(Method):
    """For the mask transformer, whose class tokens it moves apart; new ones start as the background's."""

    Settings = MBSSettings
    knobs = Method.knobs | {"method.distillation": (3.0, 300.0), "method.confidence": (0.4, 0.95)}
    initialise = "background"
    uses_teacher = True
    families = ("vit",)
    heads = ("mask",)
    refusal = "needs class tokens, which only a plain vision transformer can have"

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        return model.head.named_needs if self.step.index > 0 else ()

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        if teacher is None:
            return super().losses(batch, output, teacher)
        weights, old, to = self.settings, self.step.old, output.resolution
        known = full_precision(teacher.pixels()).softmax(dim=1)  # N × old × H × W
        label = selective_labels(batch.label, known, weights.confidence)
        share = trusted_patches(centre_labels(label, teacher.logits.shape[-2:], to), teacher.logits, old)
        (patches, classes), (old_patches, old_classes) = output.features, teacher.features
        features = adaptive_distillation(patches, old_patches, share)
        features = features + F.mse_loss(full_precision(classes[:, :, :old]), full_precision(old_classes))
        distilled = label_guided_distillation(output.logits, known, batch.label, to)
        weight = self.published(weights.distillation, DISTILLATION)
        tokens = self.model.head.joined()[0]
        return {
            "cross_entropy": cross_entropy(output.logits, label, to=to),
            "features": weights.features * features,
            "distillation": weight * distilled,
            "orthogonal": weights.orthogonal * orthogonal_tokens(tokens, old),
        }


def selective_labels(labels: Tensor, known: Tensor, confidence: float) -> Tensor:
    """Selective pseudo-labelling: background pixels take a sure old class, and count only where none is likely.

    With p′ the old model's probabilities at a background pixel: its best class where that is an old one with
    p′ ≥ `confidence`; else 255 where p′(b) < Σ_c p′(c), the sum over all old classes; else the background.
    `labels` N × H × W, `known` p′, N × old × H × W.

    >>> known = torch.tensor([[0.8, 0.1, 0.1], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8]]).T.view(1, 3, 1, 3)
    >>> selective_labels(torch.zeros(1, 1, 3).long(), known, 0.7).tolist()
    [[[0, 255, 2]]]
    """
    sure, best = known.max(dim=1)
    taken = (best > BACKGROUND) & (sure >= confidence)
    doubtful = known[:, 0] < known[:, 1:].sum(dim=1)
    found = torch.where(taken, best, torch.where(doubtful, IGNORE, BACKGROUND))
    return torch.where(labels == BACKGROUND, found.to(labels.dtype), labels)


def trusted_patches(labels: Tensor, teacher_logits: Tensor, old: int) -> Tensor:
    """How far the old model's features of a patch are trusted: N × h × w, in 0 … 1.

    1 where the label is an old class, p′(b) where it is the background, 0 where it is a new class or ignored.

    >>> labels = torch.tensor([[[0, 1, 2, 255]]])
    >>> trusted_patches(labels, torch.zeros(1, 2, 1, 4), old=2).tolist()
    [[[0.5, 1.0, 0.0, 0.0]]]
    """
    background = full_precision(teacher_logits.detach()).softmax(dim=1)[:, 0]
    known = ((labels > BACKGROUND) & (labels < old)).to(background)
    return torch.where(labels == BACKGROUND, background, known)


def adaptive_distillation(features: Tensor, before: Tensor, share: Tensor) -> Tensor:
    """Adaptive feature distillation: Σ_i a_i (f_i − f′_i)² over the number of patches with a_i > 0, mean over channels.

    Features N × D × h × w, the old model's without gradient; `share` a, N × h × w.

    >>> share = torch.tensor([[[0.5, 0.0]]])
    >>> float(adaptive_distillation(torch.full((1, 2, 1, 2), 2.0), torch.zeros(1, 2, 1, 2), share))
    2.0
    """
    distance = (full_precision(features) - full_precision(before.detach())).square().mean(dim=1)
    return (share * distance).sum() / (share > 0).sum().clamp(min=1)


def label_guided_distillation(logits: Tensor, known: Tensor, labels: Tensor, to: Resolution) -> Tensor:
    """Label-guided output distillation: −mean over pixels and channels of t_c log p_c.

    t is the old model's p′, with 0 for new classes. At a pixel that is labelled with a new class, the old model's
    background was that class: there t gives it p′(b), and the background 0. `labels` N × H × W as they come, without
    pseudo-labels; logits N × C × h × w, brought to pixels as `to` says; `known` p′, N × old × H × W.

    >>> student, known = torch.zeros(1, 4, 1, 1), torch.tensor([0.75, 0.25]).view(1, 2, 1, 1)
    >>> loss = label_guided_distillation(student, known, torch.tensor([[[3]]]), Resolution.of(1, 1))
    >>> round(float(loss), 4)  # (¾ log 4 + ¼ log 4) / 4
    0.3466
    """
    old = known.shape[1]
    log_student = to.upsample(full_precision(logits)).log_softmax(dim=1)
    new = (labels >= old) & (labels != IGNORE)
    # where the background's share goes: to itself, or to the new class that the pixel has
    receiver = torch.where(new, labels, BACKGROUND).unsqueeze(1)
    background = known[:, 0] * log_student.gather(1, receiver).squeeze(1)
    others = (known[:, 1:] * log_student[:, 1:old]).sum(dim=1)
    return -(background + others).mean() / logits.shape[1]


def orthogonal_tokens(tokens: Tensor, old: int) -> Tensor:
    """Orthogonal loss: new / C · mean over new classes i and all others j of |cos(t_i, t_j)|; no gradient into t_j.

    `tokens` C × D, the background's first.

    >>> tokens = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    >>> round(float(orthogonal_tokens(tokens, old=2)), 4)  # ⅓ · (0.6 + 0.8) / 2
    0.2333
    """
    unit = F.normalize(tokens, dim=1)
    cosine = (unit[old:] @ unit.detach().T).abs()
    itself = torch.eye(len(tokens), dtype=torch.bool, device=tokens.device)[old:]
    count = cosine.numel() - len(cosine)
    return len(cosine) / len(tokens) * cosine.masked_fill(itself, 0.0).sum() / count
