"""Recall: a trunk that stays, a head that learns old and new classes together.

Our own method, not the paper's. After step 0 the encoder stands still, so the features of the old classes stay
valid; each class leaves a Gaussian of its patch features behind (a mean and a covariance, no pictures). At a later
step the whole head is trained on the new pictures, whose background takes the old head's confident labels, and on
features drawn from those Gaussians. Nothing but the head is trained, so an update is one pass through the trunk.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiss.config import setting
from tiss.data.base import BACKGROUND, IGNORE, Batch
from tiss.errors import TissError
from tiss.losses import cross_entropy
from tiss.methods.base import Batches, Method, Settings, all_sum, register_method
from tiss.models.contract import Need, Output
from tiss.models.head import Head
from tiss.models.model import SegmentationModel
from tiss.scenarios.scenario import Step


@dataclass(frozen=True)
class RecallSettings(Settings):
    confidence: float = setting(
        0.5, "background takes the old head's label where it is this sure; unsure pixels are ignored"
    )
    replay: float = setting(0.3, "weight of the cross-entropy of drawn features")
    samples: int = setting(64, "features drawn for each old class at every update")
    balance: float = setting(
        1.0, "a drawn class counts as its patches seen to this power: 0 all alike, 1 as often as seen"
    )
    hidden: bool = setting(
        False,
        "a drawn background feature may as well be a new class, which the old pictures showed unlabelled",
    )
    purity: float = setting(0.6, "share of a patch's pixels that its class must have to be remembered")


BACKGROUND_DRAWS = 4  # times as many as for a class: it looks like many things


@dataclass(frozen=True)
class Known:
    """What features are drawn from, and what is drawn at each update."""

    means: Tensor  # k × D, the background's first
    roots: Tensor  # k × D × D
    label: Tensor  # n: every class as often, then more of the background
    weight: Tensor  # n, 1 in all


@register_method(
    "recall", "trunk frozen after step 0; confident pseudo-labels and drawn features of the old classes"
)
class Recall(Method):
    Settings = RecallSettings
    initialise = "background"
    tuned = {"step_lr": 5e-4, "step_epochs": 5}  # noqa: RUF012 - a class constant, chosen on the holdout of VOC

    def __init__(self, settings: Any, steps: int) -> None:
        super().__init__(settings, steps)
        self.means: Tensor | None = None  # classes × D, the background's first
        self.roots: Tensor | None = None  # classes × D × D, lower Cholesky factors of the covariances
        self.counts: Tensor | None = None  # classes: patches seen; a class with none cannot be drawn
        self.model: SegmentationModel | None = None
        self.old_head: Head | None = None  # as it was before the step: what names the background's pixels
        self._known: Known | None = None

    def check(self, model: SegmentationModel) -> None:
        super().check(model)
        if model.architecture.head not in ("linear", "cosine"):
            raise TissError(
                f"--method recall needs a head that reads single patches, not {model.architecture.head!r}"
            )

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        return () if self.old_head is None else ("decoder",)

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        self.model, self.old_head, self._known = model, None, None
        if step.index > 0:
            self.old_head = copy.deepcopy(model.head).requires_grad_(False)
            model.body.requires_grad_(False)
        super().begin(step, model, seed)

    def train_mode(self, model: nn.Module) -> None:
        """Batch norm and stochastic depth stand still with the trunk."""
        model.train(self.old_head is None)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        if self.old_head is None:
            return {"cross_entropy": cross_entropy(output.logits, batch.label, to=output.resolution)}
        label = self.named_background(batch.label, output, self.old_head)
        learnt = cross_entropy(output.logits, label, to=output.resolution)
        return {
            "cross_entropy": learnt,
            "replay": self.settings.replay * self.replay_loss(output.logits.device),
        }

    @torch.no_grad()
    def named_background(self, label: Tensor, output: Output, old_head: Head) -> Tensor:
        """Labels whose background is what the old head says of it, or ignored where it is not sure.

        The trunk has not moved, so the old model is the old head on the features at hand.
        """
        old = Output(old_head.to(output.logits.device)(output.features[0]), (), output.resolution)
        sure, known = old.pixels().float().softmax(dim=1).max(dim=1)
        known = torch.where(sure > self.settings.confidence, known, IGNORE)
        return torch.where(label == BACKGROUND, known, label)

    def replay_loss(self, device: torch.device) -> Tensor:
        """Cross-entropy of features drawn for every remembered class: a mean with the classes' weights."""
        assert self.model is not None and self.step is not None
        features, label, weight = self._draw(device)  # n × D, n, n
        with torch.autocast(device.type, enabled=False):
            logits = self.model.head(features.T[None, :, None, :])[0, :, 0].T.float()  # n × C
        log_total = torch.logsumexp(logits, dim=1)
        chosen = logits.gather(1, label[:, None])[:, 0]
        if self.settings.hidden:
            new = logits[:, self.step.old :]
            unknown_then = torch.logsumexp(torch.cat([logits[:, :1], new], dim=1), dim=1)
            chosen = torch.where(label == BACKGROUND, unknown_then, chosen)
        return (weight * (log_total - chosen)).sum()

    def _draw(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Features, their classes and their weights, which sum to 1."""
        known = self._known_on(device)
        noise = torch.randn(len(known.means), self.settings.samples, known.means.shape[1], device=device)
        drawn = (known.means[:, None] + noise @ known.roots.mT).flatten(0, 1)  # class after class
        more = torch.randn(len(known.label) - len(drawn), known.means.shape[1], device=device)
        drawn = torch.cat([drawn, known.means[0] + more @ known.roots[0].mT])
        return drawn, known.label, known.weight

    def _known_on(self, device: torch.device) -> Known:
        """The Gaussians of the classes that were seen, found once a step: a captured update must not look."""
        if self._known is None:
            assert self.means is not None and self.roots is not None and self.counts is not None
            seen = self.counts.nonzero()[:, 0]
            samples = self.settings.samples
            more = (BACKGROUND_DRAWS - 1) * samples if bool(seen[0] == BACKGROUND) else 0
            label = torch.cat([seen.repeat_interleave(samples), seen[:1].expand(more)])
            share = self.counts[seen].double() ** self.settings.balance
            drawn = torch.bincount(label, minlength=len(self.counts))
            weight = (share / share.sum() / drawn[seen])[torch.searchsorted(seen, label)].float()
            found = (self.means[seen], self.roots[seen], label, weight)
            self._known = Known(*(tensor.to(device) for tensor in found))
        return self._known

    @torch.no_grad()
    def end(self, step: Step, model: SegmentationModel, batches: Batches) -> None:
        model.eval()
        self.remember(step, ((model(b.image, needs=("decoder",)).features[0], b.label) for b in batches()))
        model.requires_grad_(True)

    def remember(self, step: Step, seen: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Keeps the step's classes (and, at step 0, the background) as Gaussians of their patches' features.

        `seen` gives maps N × D × h × w and labels N × H × W.
        """
        channels = range(BACKGROUND if step.index == 0 else step.old, step.old + step.new)
        assert self.model is not None, "begin() comes first"
        device = next(self.model.parameters()).device
        sums = _Moments(len(channels), self.model.decoder.channels, device)
        for decoded, label in seen:
            owner = patch_labels(label, decoded.shape[-2:], channels, self.settings.purity)
            sums.add(decoded.float().permute(0, 2, 3, 1)[owner >= 0], owner[owner >= 0])
        found = dict(zip(("means", "roots", "counts"), sums.finish(), strict=True))
        for name, value in found.items():
            kept = getattr(self, name)
            setattr(self, name, value if step.index == 0 else torch.cat([kept.to(value.device), value]))

    def state(self) -> dict[str, Tensor]:
        kept = {"means": self.means, "roots": self.roots, "counts": self.counts}
        return {name: value for name, value in kept.items() if value is not None}

    def state_bytes(self, model: SegmentationModel, classes: int) -> int:
        width = model.decoder.channels
        return 4 * classes * (width * width + width + 2)

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
