"""Recall: a frozen backbone, and a head that is trained on old and new classes at once.

Our own method, not the paper's. After step 0 the encoder is frozen, so the features of the old classes stay valid.
Each class leaves a Gaussian of its patch features behind: a mean and a covariance, no images. At a later step the
whole head is trained on the new images, whose background takes the old head's confident labels, and on features
drawn from those Gaussians. Nothing but the head is trained, so an update is one pass through the backbone.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.config import setting
from tiss.data.base import BACKGROUND, IGNORE, Batch
from tiss.losses import cross_entropy
from tiss.methods.base import Batches, Method, Settings, all_sum, register_method
from tiss.models import Head, Need, Output, SegmentationModel
from tiss.scenarios import Step


@dataclass(frozen=True)
class RecallSettings(Settings):
    confidence: float = setting(
        0.5, "background takes the old head's label where it is this sure; unsure pixels are ignored"
    )
    replay: float = setting(0.3, "weight of the cross-entropy of drawn features")
    samples: int = setting(64, "features drawn for each old class at every update")
    balance: float = setting(
        1.0, "weight of a drawn class: its number of patches to this power (0: all equal, 1: by frequency)"
    )
    hidden: bool = setting(
        False, "a drawn background feature may also be a new class, unlabelled in the old images"
    )
    purity: float = setting(0.6, "share of a patch's pixels that its class must fill to be remembered")


BACKGROUND_DRAWS = 4  # times as many as for a class: the background looks like many things


@register_method(
    "recall", "backbone frozen after step 0; confident pseudo-labels and drawn features of the old classes"
)
class Recall(Method):
    Settings = RecallSettings
    knobs = Method.knobs | {"method.replay": (0.03, 3.0), "method.confidence": (0.3, 0.9)}
    initialise = "background"
    heads = ("linear", "cosine")  # which read single patches
    frozen = "everything"  # batch norm and stochastic depth with the backbone
    tuned = {"step_lr": 5e-4, "step_epochs": 5}  # noqa: RUF012 - a class constant, chosen on the holdout of VOC
    old_head: Head  # from step 1 on: as it was before the step, to label background pixels

    def __init__(self, settings: Any, steps: int) -> None:
        super().__init__(settings, steps)
        # the patch features of each class, the background's first: means k × D; roots k × D × D, lower Cholesky
        # factors of the covariances; counts k, the patches seen (a class with none cannot be drawn)
        self.memory: dict[str, Tensor] = {}
        self._plan: tuple[Tensor, ...] = ()  # made at a step's first update, which no CUDA graph captures

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        return ("decoder",) if self.step.index > 0 else ()

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        self._plan = ()
        if step.index > 0:
            self.old_head = copy.deepcopy(model.head).requires_grad_(False)
            model.body.requires_grad_(False)
        else:
            self.memory = {}
        super().begin(step, model, seed)

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        if self.step.index == 0:
            return super().losses(batch, output, teacher)
        label = self.label_background(batch.label, output)
        return {
            "cross_entropy": cross_entropy(output.logits, label, to=output.resolution),
            "replay": self.settings.replay * self.replay_loss(output.logits.device),
        }

    @torch.no_grad()
    def label_background(self, label: Tensor, output: Output) -> Tensor:
        """Labels whose background is what the old head says of it, or ignored where it is not sure.

        The backbone has not changed, so the old model is the old head on the current features.
        """
        head = self.old_head.to(output.logits.device)
        old = Output(head(output.features[0]), (), output.resolution)
        sure, known = old.pixels().float().softmax(dim=1).max(dim=1)
        known = torch.where(sure > self.settings.confidence, known, IGNORE)
        return torch.where(label == BACKGROUND, known, label)

    def replay_loss(self, device: torch.device) -> Tensor:
        """Cross-entropy of features drawn for every remembered class: a mean with the classes' weights."""
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
        """Features, their classes (each as often, then more of the background) and weights, which sum to 1."""
        samples = self.settings.samples
        if not self._plan:
            counts = self.memory["counts"]
            seen = counts.nonzero()[:, 0]
            extra = (BACKGROUND_DRAWS - 1) * samples if bool(seen[0] == BACKGROUND) else 0
            label = torch.cat([seen.repeat_interleave(samples), seen[:1].expand(extra)])
            share = counts[seen].double() ** self.settings.balance
            drawn = torch.bincount(label, minlength=len(counts))
            weight = (share / share.sum() / drawn[seen])[torch.searchsorted(seen, label)].float()
            plan = (self.memory["means"][seen], self.memory["roots"][seen], label, weight)
            self._plan = tuple(tensor.to(device) for tensor in plan)
        means, roots, label, weight = self._plan
        noise = torch.randn(len(means), samples, means.shape[1], device=device)
        drawn = (means[:, None] + noise @ roots.mT).flatten(0, 1)  # class after class
        more = torch.randn(len(label) - len(drawn), means.shape[1], device=device)
        drawn = torch.cat([drawn, means[0] + more @ roots[0].mT])
        return drawn, label, weight

    @torch.no_grad()
    def end(self, step: Step, model: SegmentationModel, batches: Batches) -> None:
        """Remembers the step's classes (and, at step 0, the background) from one more pass over its images."""
        model.eval()
        channels = range(BACKGROUND if step.index == 0 else step.old, step.seen)
        width, device = model.decoder.channels, next(model.parameters()).device
        shapes = ((len(channels),), (len(channels), width), (len(channels), width, width))
        count, total, products = (torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes)
        for batch in batches():
            decoded = model(batch.image, needs=("decoder",)).features[0].float().permute(0, 2, 3, 1)
            owner = patch_labels(batch.label, decoded.shape[1:3], channels, self.settings.purity)
            for index in owner[owner >= 0].unique().tolist():
                chosen = decoded[owner == index].double()
                count[index] += len(chosen)
                total[index] += chosen.sum(dim=0)
                products[index] += chosen.T @ chosen
        found = gaussians(all_sum(count), all_sum(total), all_sum(products))
        for name, values in found.items():
            known = self.memory.get(name, values[:0])
            self.memory[name] = torch.cat([known.to(device), values])

    def state(self) -> dict[str, Tensor]:
        return dict(self.memory)

    def state_bytes(self, model: SegmentationModel, classes: int) -> int:
        width = model.decoder.channels
        return 4 * classes * (width * width + width + 2)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if state:
            self.memory, self._plan = dict(state), ()


def patch_labels(label: Tensor, size: tuple[int, int] | torch.Size, channels: range, purity: float) -> Tensor:
    """N × H × W labels to N × h × w: the index in `channels` of the class that fills a patch, else −1."""
    shares = [F.adaptive_avg_pool2d((label == channel).float(), (size[0], size[1])) for channel in channels]
    best, index = torch.stack(shares).max(dim=0)
    return torch.where(best >= purity, index, -1)


def gaussians(count: Tensor, total: Tensor, products: Tensor) -> dict[str, Tensor]:
    """Each class's Gaussian from the number, the sum and the products of its features, in float64."""
    safe = count.clamp(min=1)
    means = total / safe[:, None]
    spread = products / safe[:, None, None] - means[:, :, None] * means[:, None, :]
    identity = torch.eye(means.shape[1], dtype=means.dtype, device=means.device)
    scale = spread.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=1e-6)
    # few patches give a covariance without full rank: a hundredth of its mean variance keeps it factorable
    roots = torch.linalg.cholesky(spread + 0.01 * scale[:, None, None] * identity)
    # cholesky's result lies column by column; a product rounds otherwise than with the one read from a file
    return {"means": means.float(), "roots": roots.float().contiguous(), "counts": count.float()}
