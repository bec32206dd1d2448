"""Recall: a trunk that stays, a head that learns old and new classes together.

Our own method, not the paper's. After step 0 the encoder stands still, so the features of the old classes stay
valid; each class leaves a Gaussian of its patch features behind (a mean and a covariance, no pictures). At a later
step the whole head is trained on the new pictures, whose background takes the old model's confident labels, and on
features drawn from those Gaussians. A drawn background feature may belong to a class that was not known then, so
its loss counts the new classes as background, as the unbiased losses do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiss.config import setting
from tiss.data.base import BACKGROUND, IGNORE, Batch
from tiss.errors import TissError
from tiss.losses import cross_entropy, unbiased_distillation
from tiss.methods.base import Batches, Method, Settings, all_sum, register_method
from tiss.models.contract import Output
from tiss.models.model import SegmentationModel
from tiss.scenarios.scenario import Step


@dataclass(frozen=True)
class RecallSettings(Settings):
    confidence: float = setting(
        0.7, "background takes the old model's label where it is this sure; unsure pixels are ignored"
    )
    replay: float = setting(1.0, "weight of the cross-entropy of drawn features")
    samples: int = setting(64, "features drawn for each old class at every update")
    background: float = setting(4.0, "how many times as many are drawn for the background")
    distillation: float = setting(0.0, "weight of the unbiased distillation")
    purity: float = setting(0.6, "share of a patch's pixels that its class must have to be remembered")
    frozen: bool = setting(True, "the trunk stands still after step 0")


@register_method(
    "recall", "trunk frozen after step 0; confident pseudo-labels and drawn features of the old classes"
)
class Recall(Method):
    Settings = RecallSettings
    initialise = "background"
    uses_teacher = True
    tuned = {"step_lr": 1e-2}  # noqa: RUF012 - a class constant; nothing but the head moves, so it may move fast

    def __init__(self, settings: Any, steps: int) -> None:
        super().__init__(settings, steps)
        self.means: Tensor | None = None  # classes × D, the background's first
        self.roots: Tensor | None = None  # classes × D × D, lower Cholesky factors of the covariances
        self.counts: Tensor | None = None  # classes: patches seen; a class with none cannot be drawn
        self.model: SegmentationModel | None = None
        self._known: tuple[Tensor, Tensor, Tensor] | None = None

    def check(self, model: SegmentationModel) -> None:
        super().check(model)
        if model.architecture.head not in ("linear", "cosine"):
            raise TissError(
                f"--method recall needs a head that reads single patches, not {model.architecture.head!r}"
            )

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        super().begin(step, model, seed)
        self.model, self._known = model, None
        if step.index > 0 and self.settings.frozen:
            model.body.requires_grad_(False)

    def train_mode(self, model: nn.Module) -> None:
        """Batch norm and stochastic depth stand still with the trunk."""
        still = self.step is not None and self.step.index > 0 and self.settings.frozen
        model.train(not still)

    def targets(self, batch: Batch, teacher: Output | None) -> Tensor:
        if teacher is None:
            return batch.label
        sure, known = teacher.pixels().float().softmax(dim=1).max(dim=1)
        known = torch.where(sure > self.settings.confidence, known, IGNORE)
        return torch.where(batch.label == BACKGROUND, known, batch.label)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        terms = {"cross_entropy": cross_entropy(output.logits, batch.label, to=output.resolution)}
        if teacher is None:
            return terms
        if self.settings.distillation:
            distilled = unbiased_distillation(output.logits, teacher.logits, to=output.resolution)
            terms["distillation"] = self.settings.distillation * distilled
        terms["replay"] = self.settings.replay * self.replay_loss(output.logits.device)
        return terms

    def replay_loss(self, device: torch.device) -> Tensor:
        """Mean cross-entropy of features drawn for every remembered class."""
        assert self.model is not None and self.step is not None
        features, label = self._draw(device)  # n × D, n
        with torch.autocast(device.type, enabled=False):
            logits = self.model.head(features.T[None, :, None, :])[0, :, 0].T.float()  # n × C
        log_total = torch.logsumexp(logits, dim=1)
        new = logits[:, self.step.old :]
        unknown_then = torch.logsumexp(torch.cat([logits[:, :1], new], dim=1), dim=1)
        chosen = logits.gather(1, label[:, None])[:, 0]
        return (log_total - torch.where(label == BACKGROUND, unknown_then, chosen)).mean()

    def _draw(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Features and their classes: as many for each class, and more for the background."""
        means, roots, classes = self._known_on(device)
        more = round(self.settings.samples * (self.settings.background - 1))
        noise = torch.randn(len(classes), self.settings.samples, means.shape[1], device=device)
        drawn = means[:, None] + noise @ roots.mT  # classes × samples × D
        rest = means[0] + torch.randn(max(0, more), means.shape[1], device=device) @ roots[0].mT
        label = torch.cat([classes.repeat_interleave(self.settings.samples), classes[:1].expand(len(rest))])
        return torch.cat([drawn.flatten(0, 1), rest]), label

    def _known_on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """The Gaussians of the classes that were seen, found once a step: a captured update must not look."""
        if self._known is None:
            assert self.means is not None and self.roots is not None and self.counts is not None
            seen = self.counts.nonzero()[:, 0]
            self._known = (self.means[seen].to(device), self.roots[seen].to(device), seen.to(device))
        return self._known

    @torch.no_grad()
    def end(self, step: Step, model: SegmentationModel, batches: Batches) -> None:
        """Remembers the step's classes (and, at step 0, the background) as Gaussians of patch features."""
        model.eval()
        first = BACKGROUND if step.index == 0 else step.old
        channels = range(first, step.old + step.new)
        sums = _Moments(len(channels), model.decoder.channels, next(model.parameters()).device)
        for batch in batches():
            decoded = model(batch.image, needs=("decoder",)).features[0].float()
            label = patch_labels(batch.label, decoded.shape[-2:], channels, self.settings.purity)
            sums.add(decoded.permute(0, 2, 3, 1)[label >= 0], label[label >= 0])
        found = dict(zip(("means", "roots", "counts"), sums.finish(), strict=True))
        for name, value in found.items():
            kept = getattr(self, name)
            setattr(self, name, value if step.index == 0 else torch.cat([kept.to(value.device), value]))
        model.requires_grad_(True)

    def state(self) -> dict[str, Tensor]:
        kept = {"means": self.means, "roots": self.roots, "counts": self.counts}
        return {name: value for name, value in kept.items() if value is not None}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        device = next(self.model.parameters()).device if self.model is not None else "cpu"
        for name, value in state.items():
            setattr(self, name, value.to(device))


def patch_labels(label: Tensor, size: tuple[int, int] | torch.Size, channels: range, purity: float) -> Tensor:
    """N × H × W labels to N × h × w: the index in `channels` of the class that fills a patch, else −1."""
    shares = [F.adaptive_avg_pool2d((label == channel).float(), (size[0], size[1])) for channel in channels]
    best, index = torch.stack(shares).max(dim=0)
    return torch.where(best >= purity, index, -1)


class _Moments:
    """Counts, sums and products of features by class, in float64, summed over all processes at the end."""

    def __init__(self, classes: int, channels: int, device: torch.device) -> None:
        self.count = torch.zeros(classes, dtype=torch.float64, device=device)
        self.total = torch.zeros(classes, channels, dtype=torch.float64, device=device)
        self.products = torch.zeros(classes, channels, channels, dtype=torch.float64, device=device)

    def add(self, features: Tensor, label: Tensor) -> None:
        for index in label.unique().tolist():
            chosen = features[label == index].double()
            self.count[index] += len(chosen)
            self.total[index] += chosen.sum(dim=0)
            self.products[index] += chosen.T @ chosen

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """Means, Cholesky factors of the covariances, and counts."""
        count, total, products = all_sum(self.count), all_sum(self.total), all_sum(self.products)
        safe = count.clamp(min=1)
        means = total / safe[:, None]
        spread = products / safe[:, None, None] - means[:, :, None] * means[:, None, :]
        identity = torch.eye(means.shape[1], dtype=means.dtype, device=means.device)
        scale = spread.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=1e-6)
        # few patches give a covariance without full rank: a hundredth of its mean variance keeps it factorable
        roots = torch.linalg.cholesky(spread + 0.01 * scale[:, None, None] * identity)
        # cholesky's result lies column by column; a product rounds otherwise than with the one read from a file
        return means.float(), roots.float().contiguous(), count.float()
