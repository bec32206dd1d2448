"""Predictions for images of any size: one predictor for Python, the command line, the web page and exports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from tiss.data.images import read_image
from tiss.errors import TissError
from tiss.evaluation.evaluate import slide_logits, window_slices
from tiss.models import Rule, SegmentationModel, choose_labels, comparable
from tiss.palette import class_colours, overlay

MOST_LOGITS = 2**27  # numbers held at once: half a gigabyte in float32
LONGEST = 8  # windows along the longer side of an image that is enlarged


@dataclass(frozen=True)
class Prediction:
    """Class indices of one image at its own size."""

    mask: np.ndarray  # uint8, H × W
    image: np.ndarray  # uint8, H × W × 3
    classes: tuple[str, ...]
    colours: tuple[tuple[int, int, int], ...]

    def shares(self) -> dict[str, float]:
        """The share of the image that each class covers, largest first."""
        counts = np.bincount(self.mask.ravel(), minlength=len(self.classes)) / self.mask.size
        order = np.argsort(-counts, kind="stable")
        return {self.classes[i]: float(counts[i]) for i in order if counts[i] > 0}

    def overlay(self, opacity: float = 0.55) -> Image.Image:
        """The image with each class in its colour; the background stays as it is."""
        return overlay(self.image, self.mask, self.colours, opacity)

    def to_image(self) -> Image.Image:
        """The mask as a palette image whose pixel values are the class indices."""
        image = Image.fromarray(self.mask)
        image.putpalette([value for colour in self.colours for value in colour])
        return image

    def save(self, path: str | Path) -> None:
        """Writes the mask as a palette image."""
        self.to_image().save(path)


class Predictor:
    """A model and the size at which it sees images.

    The shorter side of an image is resized to `size`, which is also the window's side. With `native`, images larger
    than that keep their own size and the window slides over them.

    Args:
        model: moved to `device` and set to evaluation mode.
        size: None takes the model's own (see `seen_size`).
    """

    def __init__(
        self,
        model: SegmentationModel,
        size: int | None = None,
        native: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.model = model.to(device).eval()
        self.size = size or seen_size(model)
        self.native = native
        self.device = device
        self.classes = tuple(model.classes)
        self.colours = tuple(class_colours(len(self.classes)))

    def on(self, device: torch.device | str) -> Predictor:
        """The same predictor on another device; the model moves with it."""
        return Predictor(self.model, self.size, self.native, device)

    def labels(self, images: Sequence[Tensor]) -> list[Tensor]:
        """uint8 images 3 × H × W of one size to channel numbers H × W (uint8, on the CPU)."""
        batch = torch.stack(list(images)).to(self.device)
        height, width = batch.shape[-2:]
        if not self.native or min(height, width) < self.size:
            batch = resize(batch, self.size)
        with torch.inference_mode():
            if len(self.classes) * batch[:, 0].numel() > MOST_LOGITS:
                tiles = tile_labels(self.model, batch, self.size)[:, None].float()
                found = F.interpolate(tiles, (height, width), mode="nearest-exact")[:, 0]
            else:
                logits = slide_logits(self.model, batch, window=self.size)
                found = upsample_labels(logits, (height, width), self.model.rule)
        return [label.to("cpu", torch.uint8) for label in found]

    def one(self, image: Tensor) -> Tensor:
        """One image uint8 3 × H × W to channel numbers H × W."""
        return self.labels([image])[0]

    def predict(self, image: Any) -> Prediction:
        """Class indices at the image's own size; `image` is a path, a PIL image or a uint8 array H × W × 3."""
        pixels = to_pixels(image)
        return self.prediction(pixels, self.one(pixels))

    def prediction(self, image: Tensor, labels: Tensor) -> Prediction:
        """What `labels` gave for an image uint8 3 × H × W."""
        return Prediction(labels.numpy(), image.permute(1, 2, 0).numpy(), self.classes, self.colours)


def seen_size(model: SegmentationModel) -> int:
    """The shorter side at which the model is used: what its folder says, else the size it was built for."""
    size = model.record.get("eval_size")
    return size if isinstance(size, int) and 16 <= size <= 4096 else model.architecture.image_size


def to_pixels(image: Any) -> Tensor:
    """A path, a PIL image or a uint8 array H × W × 3 as uint8 3 × H × W."""
    if isinstance(image, (str, Path)):
        return read_image(Path(image))
    if isinstance(image, Image.Image):
        image = np.asarray(image.convert("RGB"))
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise TissError("an image must be a path, a PIL image or a uint8 array H × W × 3")
    return torch.from_numpy(image.copy()).permute(2, 0, 1).contiguous()


def resize(images: Tensor, size: int) -> Tensor:
    """uint8 N × 3 × H × W with the shorter side resized to `size`, antialiased: to the bytes that a test sees."""
    height, width = images.shape[-2:]
    if min(height, width) == size:
        return images
    factor = size / min(height, width)
    if factor > 1:  # a strip of a few pixels must not become an image of millions
        factor = max(1.0, min(factor, LONGEST * size / max(height, width)))
    shape = (max(1, round(height * factor)), max(1, round(width * factor)))
    resized = F.interpolate(images.float(), shape, mode="bilinear", antialias=True)
    return resized.round().clamp(0, 255).to(torch.uint8)


def upsample_labels(logits: Tensor, size: tuple[int, int], rule: Rule) -> Tensor:
    """Labels N × H × W of logits N × C × h × w resized to `size` (bilinear), some channels at a time.

    The logits of a photo at its full size may not fit into memory.
    """
    best = logits.new_full((len(logits), *size), float("-inf"))
    labels = torch.zeros_like(best, dtype=torch.int64)
    count, start = max(1, MOST_LOGITS // best.numel()), 0
    for group in comparable(logits, rule).split(count, dim=1):
        largest, channel = F.interpolate(group, size, mode="bilinear", align_corners=False).max(dim=1)
        labels = torch.where(largest > best, channel + start, labels)
        best, start = torch.maximum(best, largest), start + count
    return labels


def tile_labels(model: SegmentationModel, images: Tensor, window: int) -> Tensor:
    """Labels N × H × W from overlapping windows, each used up to the middle of its overlaps.

    For images whose averaged logits would not fit into memory.
    """
    height, width = images.shape[-2:]
    labels = torch.zeros(len(images), height, width, dtype=torch.int64, device=images.device)
    for rows, top in _windows(height, window):
        for columns, left in _windows(width, window):
            found = choose_labels(model(images[..., rows, columns]).pixels().float(), model.rule)
            # the next windows write over all but what lies before the middle of their overlap with this one
            labels[:, rows.start + top : rows.stop, columns.start + left : columns.stop] = found[
                :, top:, left:
            ]
    return labels


def _windows(length: int, window: int) -> list[tuple[slice, int]]:
    """The windows along one side, each with the half of its overlap that stays the one's before."""
    windows = window_slices(length, window)
    return [(windows[0], 0), *((two, (one.stop - two.start) // 2) for one, two in pairwise(windows))]
