"""Prediction for one picture of any size: class indices, and the picture with them laid over it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from tiss.data.images import read_image
from tiss.errors import TissError
from tiss.evaluation.evaluate import slide_logits
from tiss.models.model import SegmentationModel, choose_labels
from tiss.palette import class_colours


@dataclass(frozen=True)
class Prediction:
    """Class indices of one picture at its own size."""

    mask: np.ndarray  # uint8, H × W
    image: np.ndarray  # uint8, H × W × 3
    classes: tuple[str, ...]
    colours: tuple[tuple[int, int, int], ...]

    def shares(self) -> dict[str, float]:
        """The share of the picture that each class covers, largest first."""
        counts = np.bincount(self.mask.ravel(), minlength=len(self.classes)) / self.mask.size
        order = np.argsort(-counts, kind="stable")
        return {self.classes[i]: float(counts[i]) for i in order if counts[i] > 0}

    def overlay(self, opacity: float = 0.55) -> Image.Image:
        """The picture with each class in its colour; the background stays as it is."""
        palette = np.array(self.colours, np.float32)
        mixed = (1 - opacity) * self.image + opacity * palette[self.mask]
        shown = np.where(self.mask[..., None] == 0, self.image, mixed)
        return Image.fromarray(shown.round().astype(np.uint8))

    def to_image(self) -> Image.Image:
        """The mask as a palette picture whose pixel values are the class indices."""
        image = Image.fromarray(self.mask)
        image.putpalette([value for colour in self.colours for value in colour])
        return image

    def save(self, path: str | Path) -> None:
        self.to_image().save(path)


def predict_image(
    model: SegmentationModel, picture: Any, *, size: int | None, device: torch.device | str = "cpu"
) -> Prediction:
    """Segments one picture: shorter side brought to `size`, sliding window, logits back at the picture's size."""
    pixels = load_pixels(picture)  # 3 × H × W
    with torch.inference_mode():
        labels = predict_labels(model, pixels.to(device), size)
    mask = labels.cpu().numpy().astype(np.uint8)
    classes = tuple(model.classes)
    return Prediction(mask, pixels.permute(1, 2, 0).numpy(), classes, tuple(class_colours(len(classes))))


def predict_labels(model: SegmentationModel, pixels: Tensor, size: int | None) -> Tensor:
    """uint8 3 × H × W to channel numbers H × W."""
    height, width = pixels.shape[-2:]
    scaled = pixels[None]
    if size is not None and min(height, width) != size:
        factor = size / min(height, width)
        shape = (max(1, round(height * factor)), max(1, round(width * factor)))
        resized = F.interpolate(pixels[None].float(), shape, mode="bilinear", antialias=factor < 1)
        scaled = resized.round().clamp(0, 255).to(torch.uint8)
    logits = slide_logits(model, scaled, window=size or max(scaled.shape[-2:]))
    full = F.interpolate(logits, (height, width), mode="bilinear", align_corners=False)
    return choose_labels(full, model.rule)[0]


def load_pixels(picture: Any) -> Tensor:
    """A path, a PIL image or a uint8 array H × W × 3 as uint8 3 × H × W."""
    if isinstance(picture, (str, Path)):
        return read_image(Path(picture))
    if isinstance(picture, Image.Image):
        picture = np.asarray(picture.convert("RGB"))
    if (
        isinstance(picture, np.ndarray)
        and picture.dtype == np.uint8
        and picture.ndim == 3
        and picture.shape[2] == 3
    ):
        return torch.from_numpy(picture.copy()).permute(2, 0, 1).contiguous()
    raise TissError("a picture must be a path, a PIL image or a uint8 array H × W × 3")
