"""PLOP's terms: local POD, which keeps the teacher's row and column means, and pseudo-labels.

Background pixels take the old model's class where its entropy is below a threshold per class: that of the published
code, or the exact median over all background pixels of the training set with that class. The exact median needs no
list of pixels: a float's 32 bits are counted in two passes, first the upper half, then the lower half of those that
share the median's upper half. Counts add up across processes.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tiss.data.base import BACKGROUND, IGNORE
from tiss.losses.upsampling import full_precision
from tiss.models import Resolution

SCALES = (1, 2, 4)
FLOOR = 0.001  # of every threshold
UPPER_BINS = 1 << 14  # upper halves of the floats in [0, 2)
LOWER_BINS = 1 << 16
OFFICIAL_BINS = 100


def local_pod(
    maps: Sequence[Tensor],
    teacher_maps: Sequence[Tensor],
    old_classes: int,
    new_classes: int,
    factor: float = 0.01,
    logits_factor: float = 0.0005,
    *,
    normalise: bool = False,
) -> Tensor:
    """Distance between the local POD embeddings of two models, the last map being the logits.

    Maps N × D × H × W; the student's logits have old + new channels, the teacher's old, and the raw new logits are
    added to the background's. Each map: Euclidean distance per image, mean over the batch, times its factor and
    sqrt((old + new) / new); mean over maps. `old_classes` counts the background; the teacher gets no gradient.
    `normalise` brings the embedding of each scale to length 1 first (PLOPLong, in our reading).

    >>> student, teacher = [torch.ones(1, 2, 4, 4)], [torch.zeros(1, 1, 4, 4)]
    >>> round(float(local_pod(student, teacher, 1, 1, logits_factor=1.0)), 4)  # 4 · sqrt(56 · 2)
    42.332
    """
    total = maps[0].new_zeros((), dtype=full_precision(maps[0]).dtype)
    last = len(maps) - 1
    for index, (student, teacher) in enumerate(zip(maps, teacher_maps, strict=True)):
        student, teacher = full_precision(student), full_precision(teacher.detach())
        if index == last:  # the new logits are added to the background's
            background = student[:, :1] + student[:, old_classes:].sum(1, keepdim=True)
            student = torch.cat([background, student[:, 1:old_classes]], 1)
        distance = _embed(student, normalise) - _embed(teacher, normalise)
        weight = logits_factor if index == last else factor
        total = total + weight * torch.linalg.vector_norm(distance, dim=1).mean()
    # where no class is new, as many count as new as there are: the published code's factor of 1
    return total / len(maps) * math.sqrt(1 + old_classes / new_classes if new_classes else 1)


def _embed(feature_map: Tensor, normalise: bool) -> Tensor:
    """Row and column means of the squared map's cells at every scale, N × D × H × W to N × length."""
    squared = feature_map.square()
    images, channels, height, width = squared.shape
    parts = []
    for scale in SCALES:
        rows, columns = height // scale, width // scale
        if rows == 0 or columns == 0:  # a map smaller than the grid has no cells at this scale
            continue
        cells = squared[..., : rows * scale, : columns * scale]
        cells = cells.reshape(images, channels, scale, rows, scale, columns)
        part = torch.cat([cells.mean(5).flatten(1), cells.mean(3).flatten(1)], 1)
        parts.append(torch.nn.functional.normalize(part, dim=1) if normalise else part)
    return torch.cat(parts, 1)


def entropy_and_class(
    logits: Tensor, to: Resolution | None = None, official_classes: int | None = None
) -> tuple[Tensor, Tensor]:
    """The old model's entropy −Σ p log p / log(old), in [0, 1], and its class, both N × H × W.

    `logits` N × old × h × w. With `official_classes` (old + new) the entropy is the published one: the mean
    over channels instead of the sum, divided by log(old) and by log(old + new).

    >>> entropy, predicted = entropy_and_class(torch.zeros(1, 4, 1, 1))
    >>> float(entropy), int(predicted)
    (1.0, 0)
    """
    old = logits.shape[1]
    divisor = max(math.log(old), 1e-8)  # one class alone: its entropy is 0
    if official_classes is not None:
        divisor *= old * math.log(official_classes)
    to = to or Resolution.of(*logits.shape[-2:])
    entropies, predictions = [], []
    for image in full_precision(logits).split(1):  # one at a time: logits of pixels are large
        log_probability = to.upsample(image).log_softmax(1)
        entropies.append(-(log_probability.exp() * log_probability).sum(1) / divisor)
        predictions.append(log_probability.argmax(1))
    return torch.cat(entropies), torch.cat(predictions)


class EntropyThresholds:
    """Accumulates, for each old class, the threshold below which its pseudo-labels are used.

    Pass over the training set `passes` times: `add` every batch, sum `counts` over processes, call `finish`. Then
    `values` holds max(median, FLOOR); a class never predicted has FLOOR. `official` does as the published code:
    100 bins, and a search for the median that sums the bins' indices instead of their contents.
    """

    def __init__(self, classes: int, official: bool = False, *, device: torch.device | str = "cpu") -> None:
        self.official = official
        self.passes = 1 if official else 2
        self.values = torch.full((classes,), FLOOR, device=device)
        bins = OFFICIAL_BINS if official else UPPER_BINS
        self.counts = torch.zeros(classes, bins, dtype=torch.int64, device=device)
        # after the first pass: the median's upper half, K, and its rank among the floats that share it
        self._median: tuple[Tensor, Tensor] | None = None

    def add(self, entropy: Tensor, predicted: Tensor, background: Tensor) -> None:
        """Counts one batch; all three N × H × W, `background` where a pseudo-label is wanted."""
        values, classes = entropy[background].float().clamp(0, 1.5), predicted[background].long()
        if self.official:
            bins = (values * OFFICIAL_BINS).long().clamp(max=OFFICIAL_BINS - 1)
        else:
            bits = values.view(torch.int32).long()
            bins = bits >> 16
            if self._median is not None:
                near = bins == self._median[0][classes]
                bins, classes = bits[near] & 0xFFFF, classes[near]
        places = classes * self.counts.shape[1] + bins
        self.counts += torch.bincount(places, minlength=self.counts.numel()).view_as(self.counts)

    def finish(self) -> None:
        """Ends a pass."""
        if self.official:
            for index, histogram in enumerate(self.counts.tolist()):
                if any(histogram):
                    self.values[index] = max(official_median(histogram), FLOOR)
        elif self._median is None:
            self._median = _select(self.counts, (self.counts.sum(1) - 1).clamp(min=0) // 2)
            self.counts = self.counts.new_zeros(len(self.values), LOWER_BINS)
        else:
            upper, rank = self._median
            median = ((upper << 16) | _select(self.counts, rank)[0]).to(torch.int32).view(torch.float32)
            median = torch.where(self.counts.sum(1) > 0, median, torch.zeros_like(median))
            self.values = median.clamp(min=FLOOR)


def official_median(histogram: list[int]) -> float:
    """The published search: the running sum grows by the bin's index, not by what is in it.

    >>> official_median([6, 2, 2, 0])
    0.20833333333333334
    """
    bins, half, running = len(histogram), sum(histogram) / 2, 0
    for found, content in enumerate(histogram):
        if running <= half <= running + content:
            break
        running += found
    else:
        found, content = bins - 1, histogram[-1]
    rest = half - running
    if content == 0:  # nothing there: the published quotient is infinite, or undefined and below no entropy
        return math.copysign(math.inf, rest) if rest else 0.0
    return found / bins + rest / content / bins


def pseudo_labels(
    labels: Tensor, entropy: Tensor, predicted: Tensor, thresholds: Tensor, official: bool = False
) -> tuple[Tensor, Tensor]:
    """Labels with pseudo-labels in place of the background, N × H × W, and each image's weight, N.

    Background pixels take `predicted` where `entropy` is below that class's threshold, else 255. The weight
    is pseudo-labelled / background pixels; an image without background keeps weight 1 (`official`: 0).

    >>> labels = torch.tensor([[[0, 0, 3]]])
    >>> entropy, predicted = torch.tensor([[[0.1, 0.9, 0.1]]]), torch.tensor([[[1, 1, 0]]])
    >>> pseudo_labels(labels, entropy, predicted, torch.tensor([0.5, 0.5]))
    (tensor([[[  1, 255,   3]]]), tensor([0.5000]))
    """
    background = labels == BACKGROUND
    sure = entropy < thresholds[predicted]
    filled = torch.where(sure, predicted, torch.full_like(predicted, IGNORE)).to(labels.dtype)
    wanted = background.flatten(1).sum(1)
    found = (background & sure).flatten(1).sum(1)
    weights = found / wanted.clamp(min=1)
    if not official:
        weights = torch.where(wanted > 0, weights, torch.ones_like(weights))
    return torch.where(background, filled, labels), weights


def _select(counts: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    """The bin that holds the element of `rank` (from 0) in each row of counts, and its rank inside."""
    cumulated = counts.cumsum(1)
    chosen = torch.searchsorted(cumulated, rank.unsqueeze(1), right=True).clamp(max=counts.shape[1] - 1)
    before = (cumulated - counts).gather(1, chosen)
    return chosen.squeeze(1), (rank.unsqueeze(1) - before).clamp(min=0).squeeze(1)
