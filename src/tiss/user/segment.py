"""Class indices of pictures of any size, with bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.evaluation.evaluate import slide_logits, window_starts
from tiss.models.model import SegmentationModel, choose_labels

MOST_LOGITS = 2**27  # numbers held at once: half a gigabyte in float32
LONGEST = 8  # windows along the longer side of a picture that is enlarged


@dataclass(frozen=True)
class Segmenter:
    """A model with the way it looks at pictures.

    The shorter side is brought to `size`, which is also the window's; with `native`, pictures larger than
    that keep their own size and the window slides over them.
    """

    model: SegmentationModel
    size: int
    native: bool = False
    device: torch.device | str = "cpu"

    def on(self, device: torch.device | str) -> Segmenter:
        """The same on another device."""
        self.model.to(device)
        return replace(self, device=device)

    def labels(self, pictures: Sequence[Tensor]) -> list[Tensor]:
        """uint8 pictures 3 × H × W of one size to channel numbers H × W (uint8, on the CPU)."""
        with torch.inference_mode():
            images = torch.stack(list(pictures)).to(self.device)
            found = self._scaled(images)
        return [label.to("cpu", torch.uint8) for label in found]

    def one(self, picture: Tensor) -> Tensor:
        """One picture uint8 3 × H × W to channel numbers H × W."""
        return self.labels([picture])[0]

    def _scaled(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        scaled = images if self.native and min(height, width) >= self.size else resize(images, self.size)
        channels = len(self.model.classes)
        if channels * scaled.shape[0] * scaled.shape[-2] * scaled.shape[-1] > MOST_LOGITS:
            tiles = tile_labels(self.model, scaled, self.size)
            return resize_labels(tiles, (height, width))
        logits = slide_logits(self.model, scaled, window=self.size)
        return upsample_labels(logits, (height, width), self.model.rule)


def resize(images: Tensor, size: int) -> Tensor:
    """uint8 N × 3 × H × W with the shorter side brought to `size`, smoothed where that is smaller."""
    height, width = images.shape[-2:]
    if min(height, width) == size:
        return images
    factor = size / min(height, width)
    if factor > 1:  # a strip of a few pixels shall not become a picture of millions
        factor = max(1.0, min(factor, LONGEST * size / max(height, width)))
    shape = (max(1, round(height * factor)), max(1, round(width * factor)))
    resized = F.interpolate(images.float(), shape, mode="bilinear", antialias=factor < 1)
    return resized.round().clamp(0, 255).to(torch.uint8)


def upsample_labels(logits: Tensor, size: tuple[int, int], rule: str) -> Tensor:
    """Labels N × H × W of logits N × C × h × w brought to `size` (bilinear), band by band of rows.

    The logits of a photograph at its full size can be larger than the memory; each band is exact, since
    bilinear interpolation takes rows and columns one after the other.
    """
    height, width = size
    rows = max(1, MOST_LOGITS // max(1, logits.shape[0] * logits.shape[1] * width))
    if rows >= height:
        full = F.interpolate(logits, size, mode="bilinear", align_corners=False)
        return choose_labels(full, rule)  # type: ignore[arg-type]
    place = ((torch.arange(height, device=logits.device) + 0.5) * logits.shape[2] / height - 0.5).clamp(min=0)
    above = place.floor().long().clamp(max=logits.shape[2] - 1)
    below = (above + 1).clamp(max=logits.shape[2] - 1)
    weight = (place - above)[:, None]
    bands = []
    for start in range(0, height, rows):
        chosen = slice(start, start + rows)
        upper, lower = logits[:, :, above[chosen]], logits[:, :, below[chosen]]
        band = upper + (lower - upper) * weight[chosen]
        wide = F.interpolate(band, (band.shape[2], width), mode="bilinear", align_corners=False)
        bands.append(choose_labels(wide, rule))  # type: ignore[arg-type]
    return torch.cat(bands, dim=1)


def tile_labels(model: SegmentationModel, images: Tensor, window: int) -> Tensor:
    """Labels N × H × W from overlapping windows, each deciding up to the middle of its overlaps.

    What a picture too large for averaged logits gets: nothing of its size times the classes is ever held.
    """
    height, width = images.shape[-2:]
    labels = torch.zeros(len(images), height, width, dtype=torch.int64, device=images.device)
    tall, wide = min(window, height), min(window, width)
    for top, first_row, last_row in _cells(height, tall):
        for left, first_column, last_column in _cells(width, wide):
            output = model(images[..., top : top + tall, left : left + wide])
            found = choose_labels(output.pixels().float(), model.rule)
            labels[:, first_row:last_row, first_column:last_column] = found[
                :, first_row - top : last_row - top, first_column - left : last_column - left
            ]
    return labels


def resize_labels(labels: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(labels.shape[-2:]) == size:
        return labels
    return F.interpolate(labels[:, None].float(), size, mode="nearest-exact")[:, 0].long()


def _cells(length: int, window: int) -> list[tuple[int, int, int]]:
    """Where each window starts, and the part of the side that it decides."""
    starts = window_starts(length, window)
    ends = [(one + window + other) // 2 for one, other in pairwise(starts)]
    return list(zip(starts, [0, *ends], [*ends, length], strict=True))
