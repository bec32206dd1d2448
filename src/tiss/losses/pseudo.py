"""PLOP's pseudo-labels: background pixels take the old model's class where it is sure enough.

Sure means that its entropy is below a threshold per class: that of the published code, or the exact median over
all background pixels of the training set with that class. The exact median needs no list of pixels: a float's 32
bits are counted in two passes, first the upper half, then the lower half of those that share the median's upper
half. Counts add up across processes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tiss.data.base import BACKGROUND, IGNORE
from tiss.losses.upsampling import full_precision
from tiss.models.contract import Resolution

FLOOR = 0.001
UPPER_BINS = 1 << 14  # upper halves of the floats in [0, 2)
LOWER_BINS = 1 << 16
OFFICIAL_BINS = 100


def entropy_and_class(
    logits: Tensor, to: Resolution | None = None, official_classes: int | None = None
) -> tuple[Tensor, Tensor]:
    """The old model's entropy −Σ p log p / log(old), in [0, 1], and its class, both N × H × W.

    `logits` N × old × h × w. With `official_classes` (old + new) the entropy is the published one: the mean
    over channels instead of the sum, divided by log(old) and by log(old + new).

    >>> import torch
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

    Pass over the training set `passes` times: `add` every batch, sum `counts` over processes, call `finish`.
    Then `values` holds max(median, floor); a class never predicted has the floor. `official` does as the
    published code: 100 bins, and a search for the median that sums the bins' indices instead of their
    contents.
    """

    def __init__(
        self,
        classes: int,
        official: bool = False,
        floor: float = FLOOR,
        device: torch.device | str = "cpu",
    ) -> None:
        self.classes = classes
        self.official = official
        self.floor = floor
        self.passes = 1 if official else 2
        self.values = torch.full((classes,), floor, device=device)
        self._upper: Tensor | None = None  # of the median's bits, K, once the first pass is over
        self._rank: Tensor | None = None  # of the median among the floats with that upper half
        self.counts = self._zeros(OFFICIAL_BINS if official else UPPER_BINS)

    def add(self, entropy: Tensor, predicted: Tensor, background: Tensor) -> None:
        """Counts one batch; all three N × H × W, `background` where a pseudo-label is wanted."""
        values, classes = entropy[background].float().clamp(0, 1.5), predicted[background].long()
        if self.official:
            bins = (values * OFFICIAL_BINS).long().clamp(max=OFFICIAL_BINS - 1)
        else:
            bits = values.view(torch.int32).long()
            bins = bits >> 16
            if self._upper is not None:
                near = bins == self._upper[classes]
                bins, classes = bits[near] & 0xFFFF, classes[near]
        width = self.counts.shape[1]
        self.counts += torch.bincount(classes * width + bins, minlength=self.counts.numel()).view_as(
            self.counts
        )

    def finish(self) -> None:
        """Ends a pass."""
        if self.official:
            for index, histogram in enumerate(self.counts.tolist()):
                if sum(histogram) > 0:
                    self.values[index] = max(official_median(histogram), self.floor)
        elif self._rank is None:
            rank = (self.counts.sum(1) - 1).clamp(min=0) // 2
            self._upper, self._rank = _select(self.counts, rank)
            self.counts = self._zeros(LOWER_BINS)
        else:
            assert self._upper is not None
            lower, _ = _select(self.counts, self._rank)
            median = ((self._upper << 16) | lower).to(torch.int32).view(torch.float32)
            median = torch.where(self.counts.sum(1) > 0, median, torch.zeros_like(median))
            self.values = median.clamp(min=self.floor)

    def _zeros(self, bins: int) -> Tensor:
        return torch.zeros(self.classes, bins, dtype=torch.int64, device=self.values.device)


def official_median(histogram: list[int]) -> float:
    """The published search: the running sum grows by the bin's index, not by what is in it.

    >>> official_median([6, 2, 2, 0])
    0.20833333333333334
    """
    bins = len(histogram)
    half = sum(histogram) / 2
    running = 0
    found = bins - 1
    for index, content in enumerate(histogram):
        if running <= half <= running + content:
            found = index
            break
        running += index
    content = histogram[found]
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

    >>> import torch
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
