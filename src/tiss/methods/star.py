"""STAR: each old class is replayed from a prototype, as often as the complete data would show it.

Chen et al., "Saving 100x Storage: Prototype Replay for Reconstructing Training Sample Distribution in
Class-Incremental Semantic Segmentation", NeurIPS 2023.

The equations below were read off the published code and the paper's abstract, since the paper's full text was not at
hand: terms have the paper's names and no equation numbers. Three things differ from the code. A fixed number of
features per class is drawn and weighted by how many the class is owed, instead of as many as that; the expected loss
is the same. Ignored pixels add nothing, where the code takes them for background. The rows of old classes are fixed;
in the code, which has no loss on them either, the weight decay shrinks them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.config import setting
from tiss.data.base import BACKGROUND, Batch
from tiss.losses import binary_cross_entropy, centre_labels, class_sums
from tiss.losses.upsampling import full_precision
from tiss.methods.base import Batches, Method, Settings, all_sum, register_method
from tiss.models import Need, Output, SegmentationModel
from tiss.scenarios import Step

POSITIVE = {"voc": 4.0, "ade20k": 30.0}  # published weights of a class's own pixels
# what the published code assumes of overlapped steps, where earlier images may come again
SEEN_BEFORE = 0.5  # the share of a step's background that was in earlier images
BECOME_NEW = 0.01  # the share of the earlier background that each new class turns out to be


@dataclass(frozen=True)
class StarSettings(Settings):
    features: float = setting(5.0, "weight of OCFM: features of old classes stay where they were")
    discrimination: float = setting(
        0.05, "weight of SAD: a new class keeps away from the most similar old one"
    )
    positive: float | None = setting(
        None, "weight of a class's own pixels in its binary cross-entropy (None: 4, ADE20K 30)"
    )
    threshold: float = setting(0.5, "the old model sees a class where its logit exceeds this")
    samples: int = setting(64, "features drawn for each old class at every update")


@register_method(
    "star", "replay of prototypes and background in the proportions of the complete data", title="STAR"
)
class Star(Method):
    """One sigmoid per class. A step trains the new classes' sigmoids, and its images hold too few other pixels.

    Drawn features of the old classes and repeated background features stand for the pixels that are missing.
    """

    Settings = StarSettings
    knobs = Method.knobs | {"method.features": (0.5, 50.0), "method.discrimination": (0.005, 0.5)}
    uses_teacher = True
    heads = ("linear",)  # which reads single positions
    frozen = "norms"

    def __init__(self, settings: Any, steps: int) -> None:
        super().__init__(settings, steps)
        # k old classes, features of width D at the decoder's positions: prototypes k × D (unit vectors), noise k × D
        # and norms k × 2 (mean and deviation of the length); counts 1 + k, the positions of the background and of
        # each class in all images so far; found, from prepare(): the same in the step's images, as the old model
        # sees them, and last all their positions
        self.memory: dict[str, Tensor] = {}
        self._plan: tuple[Tensor, ...] = ()  # made at a step's first update, which no CUDA graph captures

    def needs(self, model: SegmentationModel) -> tuple[Need, ...]:
        return ("decoder",) if self.step.index > 0 else ()

    def begin(self, step: Step, model: SegmentationModel, seed: int) -> None:
        super().begin(step, model, seed)
        model.rule = "sigmoid"
        self._plan = ()
        if step.index == 0:
            self.memory = {}
            return
        for parameters in model.head.growing():
            for old in parameters[:-1]:
                old.requires_grad_(False)

    @torch.no_grad()
    def prepare(self, model: SegmentationModel, teacher: SegmentationModel | None, batches: Batches) -> None:
        """Counts the old classes and the background among the step's positions."""
        if teacher is None:
            return
        old = self.step.old
        found = torch.zeros(old + 1, dtype=torch.float64, device=next(teacher.parameters()).device)
        for batch in batches():
            output = teacher(batch.image)
            label = centre_labels(batch.label, output.logits.shape[-2:], output.resolution)
            seen = old_class(output.logits, self.settings.threshold)[label == BACKGROUND]
            found[:old] += torch.bincount(seen, minlength=old)
            found[old] += label.numel()
        self.memory["found"], self._plan = all_sum(found).float(), ()

    def losses(self, batch: Batch, output: Output, teacher: Output | None) -> dict[str, Tensor]:
        weights, old = self.settings, self.step.old
        positive = self.published(weights.positive, POSITIVE)
        own = binary_cross_entropy(
            output.logits, batch.label, to=output.resolution, first=old, positive=positive
        )
        if teacher is None:
            return {"binary": own}
        features, before = full_precision(output.features[0]), full_precision(teacher.features[0])
        label = centre_labels(batch.label, features.shape[-2:], output.resolution)
        hidden, seen = label == BACKGROUND, old_class(teacher.logits, weights.threshold)
        drawn, owed, repeat, prototypes = self._replay(features.device)
        replayed = negatives(F.linear(drawn, self.model.head.rows[-1], self.model.head.biases[-1]))
        background = hidden & (seen == BACKGROUND)
        repeated = negatives(output.logits[:, old:].permute(0, 2, 3, 1)) * background
        maintained = feature_maintenance(features, before, hidden & (seen > BACKGROUND))
        apart = similarity_aware_discrimination(features, label, prototypes, old, self.step.seen)
        return {
            "binary": rebalanced(own, replayed.mean(dim=1), owed, repeated.mean(), background, repeat),
            "features": weights.features * maintained,
            "discrimination": weights.discrimination * apart,
        }

    def _replay(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features k × samples × D of the old classes, what each is owed (k), the background too, and prototypes."""
        if not self._plan:
            names = ("prototypes", "noise", "norms", "counts", "found")
            prototypes, noise, norms, counts, found = (self.memory[name].to(device) for name in names)
            owed, repeat = missing(counts, found, self.step.new, self.step.setup)
            self._plan = (prototypes, noise, norms, owed, repeat)
        prototypes, noise, norms, owed, repeat = self._plan
        shape = (len(prototypes), self.settings.samples, prototypes.shape[1])
        direction = prototypes[:, None] + noise[:, None] * torch.randn(shape, device=device)
        # the published code draws a length for every channel
        length = norms[:, :1, None] + norms[:, 1:, None] * torch.randn(shape, device=device)
        return direction * length, owed, repeat, prototypes

    @torch.no_grad()
    def end(self, step: Step, model: SegmentationModel, batches: Batches) -> None:
        """Remembers the step's classes from one more pass over its images, and what the background has become."""
        model.eval()
        width, device = model.decoder.channels, next(model.parameters()).device
        total = torch.zeros(step.seen, 2 * width + 2, dtype=torch.float64, device=device)
        count = torch.zeros(step.seen, dtype=torch.float64, device=device)
        for batch in batches():
            output = model(batch.image, needs=("decoder",))
            features = output.features[0].double()
            label = centre_labels(batch.label, features.shape[-2:], output.resolution)
            length = features.norm(dim=1, keepdim=True)
            direction = features / length.clamp(min=1e-12)
            moments = torch.cat([direction, direction.square(), length, length.square()], dim=1)
            sums, counts = class_sums(moments, label, step.seen)
            total, count = total + sums, count + counts
        total, count = all_sum(total), all_sum(count).float()
        known = {name: tensor.to(device) for name, tensor in self.memory.items()}
        for name, values in statistics(count[step.old :], total[step.old :]).items():
            self.memory[name] = torch.cat([known[name], values]) if name in known else values
        before = count[:1]
        if "counts" in known:
            before = extended(known["counts"], self.memory.pop("found").to(device), step.new, step.setup)
        self.memory["counts"] = torch.cat([before, count[step.old :]])

    def state(self) -> dict[str, Tensor]:
        return dict(self.memory)

    def state_bytes(self, model: SegmentationModel, classes: int) -> int:
        return 4 * classes * (2 * model.decoder.channels + 3)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if state:
            self.memory, self._plan = dict(state), ()

    def base_settings(self) -> dict[str, Any]:
        return {"loss": "binary", "positive": self.settings.positive}


def old_class(logits: Tensor, threshold: float) -> Tensor:
    """The old model's class where its logit exceeds `threshold`, else the background: N × C × h × w to N × h × w.

    >>> old_class(torch.tensor([9.0, 0.2, 0.7, 0.6]).view(1, 4, 1, 1), 0.5).tolist()
    [[[2]]]
    """
    best, channel = logits[:, 1:].max(dim=1)
    return torch.where(best > threshold, channel + 1, BACKGROUND)


def negatives(logits: Tensor) -> Tensor:
    """Binary cross-entropy of logits … × K that belong to none of the K classes, summed over these: Σ log(1 + exp z).

    >>> round(float(negatives(torch.zeros(2))), 4)  # 2 log 2
    1.3863
    """
    return F.softplus(full_precision(logits)).sum(dim=-1)


def missing(counts: Tensor, found: Tensor, new: int, setup: str) -> tuple[Tensor, Tensor]:
    """What a step's images lack, as shares of their own positions: for each old class, and for the background.

    With N_c the positions of a class so far, P_c those that the old model finds in the step's images, and P all of
    these images' positions, class c is owed max(N_c − P_c, 0) / P in overlapped steps, where the pixels found may be
    known already, and N_c / P in others. Each background position found counts 1 + r times, with
    r = max((1 − .01 · new) · N_b / P_b − .5, 0) in overlapped steps and N_b / P_b in others.

    `counts` 1 + k, the background's first; `found` 1 + k + 1, all positions last.

    >>> owed, repeat = missing(torch.tensor([60.0, 30.0]), torch.tensor([50.0, 10.0, 80.0]), 1, "disjoint")
    >>> owed.tolist(), round(float(repeat), 4)
    ([0.375], 1.2)
    """
    overlapped = setup == "overlapped"
    owed = counts[1:] - (found[1:-1] if overlapped else 0)
    repeat = known_background(counts, new, setup) / found[0].clamp(min=1)
    if overlapped:
        repeat = repeat - SEEN_BEFORE
    return owed.clamp(min=0) / found[-1].clamp(min=1), repeat.clamp(min=0)


def extended(counts: Tensor, found: Tensor, new: int, setup: str) -> Tensor:
    """`counts` with the step's images: what was found is new, or half of the background in overlapped steps.

    >>> extended(torch.tensor([60.0, 30.0]), torch.tensor([50.0, 10.0, 80.0]), 1, "disjoint").tolist()
    [110.0, 40.0]
    """
    known = known_background(counts, new, setup)
    if setup == "overlapped":
        return torch.cat([(known + SEEN_BEFORE * found[0]).view(1), counts[1:]])
    return torch.cat([(known + found[0]).view(1), counts[1:] + found[1:-1]])


def known_background(counts: Tensor, new: int, setup: str) -> Tensor:
    """The earlier positions that are background still; in overlapped steps some are new classes now.

    >>> round(float(known_background(torch.tensor([60.0]), 5, "overlapped")), 4)
    57.0
    """
    return counts[0] * (1 - BECOME_NEW * new) if setup == "overlapped" else counts[0]


def rebalanced(
    own: Tensor, replayed: Tensor, owed: Tensor, repeated: Tensor, background: Tensor, repeat: Tensor
) -> Tensor:
    """L = (L_own + Σ_c w_c L_c + r · L_b) / (1 + Σ_c w_c + r · β): the loss over a complete sample of positions.

    `own` is the loss of the images, `replayed` L_c of each old class's drawn features (k), with `owed` w_c; `repeated`
    L_b is the mean over all positions of the loss on background features (0 elsewhere), `background` N × h × w
    marks these, β is their share and `repeat` r.

    >>> loss = rebalanced(torch.tensor(1.0), torch.tensor([2.0]), torch.tensor([0.5]),
    ...     torch.tensor(0.25), torch.tensor([True, False]), torch.tensor(2.0))
    >>> round(float(loss), 4)  # (1 + 0.5 · 2 + 2 · 0.25) / (1 + 0.5 + 2 · 0.5)
    1.0
    """
    total = own + (owed * replayed).sum() + repeat * repeated
    return total / (1 + owed.sum() + repeat * background.to(total).mean())


def feature_maintenance(features: Tensor, before: Tensor, old: Tensor) -> Tensor:
    """OCFM: mean squared difference of the features N × D × h × w where `old` N × h × w sees an old class, else 0.

    >>> mask = torch.tensor([[[True, False]]])
    >>> float(feature_maintenance(torch.full((1, 2, 1, 2), 3.0), torch.ones(1, 2, 1, 2), mask))
    4.0
    """
    distance = (features - before.detach()).square().mean(dim=1)
    return (distance * old).sum() / old.sum().clamp(min=1)


def similarity_aware_discrimination(
    features: Tensor, labels: Tensor, prototypes: Tensor, old: int, seen: int
) -> Tensor:
    """SAD: mean over the new classes of 1 / min_k ‖m_c − p_k‖; a class that is not in the batch adds 0.

    m_c is the sum of the class's unit features, brought to length 1; p_k are the old prototypes k × D. Features
    N × D × h × w, labels N × h × w.

    >>> features = torch.tensor([0.0, 2.0]).view(1, 2, 1, 1)
    >>> prototypes = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    >>> loss = similarity_aware_discrimination(features, torch.full((1, 1, 1), 3), prototypes, 3, 4)
    >>> round(float(loss), 4)  # 1 / √(2 − 2 · 0.8)
    1.5811
    """
    sums, counts = class_sums(F.normalize(features, dim=1), labels, seen)
    centres = F.normalize(sums[old:], dim=1)
    nearest = (centres @ prototypes.to(centres).T).amax(dim=1)
    inverse = (2 - 2 * nearest).clamp(min=1e-6).rsqrt()  # of unit vectors: ‖m − p‖² = 2 − 2 m·p
    return torch.where(counts[old:] > 0, inverse, 0.0).sum() / (seen - old)


def statistics(count: Tensor, total: Tensor) -> dict[str, Tensor]:
    """Prototype, noise and length of each class from sums over its features f = ‖f‖ u.

    `total` k × (2D + 2) holds Σ u, Σ u², Σ ‖f‖ and Σ ‖f‖². The prototype p is Σ u at length 1, the noise
    √(mean (u − p)²) in each channel.

    >>> found = statistics(torch.tensor([2.0]), torch.tensor([[2.0, 0.0, 2.0, 0.0, 4.0, 10.0]]))
    >>> found["prototypes"].tolist(), found["noise"].tolist(), found["norms"].tolist()
    ([[1.0, 0.0]], [[0.0, 0.0]], [[2.0, 1.0]])
    """
    mean = total / count.clamp(min=1).unsqueeze(1).to(total)
    width = (total.shape[1] - 2) // 2
    direction, square, (length, length_square) = mean[:, :width], mean[:, width:-2], mean[:, -2:].T
    prototypes = F.normalize(direction, dim=1)
    noise = (square - 2 * prototypes * direction + prototypes.square()).clamp(min=0).sqrt()
    deviation = (length_square - length.square()).clamp(min=0).sqrt()
    found = {"prototypes": prototypes, "noise": noise, "norms": torch.stack([length, deviation], dim=1)}
    return {name: values.float() for name, values in found.items()}
