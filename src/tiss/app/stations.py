"""The models that the slider goes through, and what each says about a picture."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiss.errors import TissError
from tiss.files import read_json
from tiss.models.folder import CONFIG
from tiss.user.source import Source, find_source, line_of, open_segmenter, run_steps

KEPT_MODELS, KEPT_MASKS = 3, 64


class Stations:
    """A run's steps, or a model with its parents, first to last. Models are loaded when they are asked for."""

    def __init__(self, folders: Sequence[Path], device: str = "auto") -> None:
        self.folders = list(folders)
        self.device = device
        self.classes = [self._config(folder)["classes"] for folder in folders]
        self.records: list[dict[str, Any]] = [self._config(folder).get("record", {}) for folder in folders]
        self._models: OrderedDict[int, Any] = OrderedDict()
        self._masks: OrderedDict[tuple[int, bytes], np.ndarray] = OrderedDict()
        self.segmenter(len(self) - 1)  # a folder with a fault ends the command, not a visitor's click

    @staticmethod
    def _config(folder: Path) -> Any:
        config = read_json(folder / CONFIG)
        if not isinstance(config, dict) or not isinstance(config.get("classes"), list):
            raise TissError(f"{folder / CONFIG}: not a model folder of tiss")
        return config

    def __len__(self) -> int:
        return len(self.folders)

    def title(self, step: int) -> str:
        """What came with a step: 'step 1: + star'."""
        before = self.classes[step - 1] if step else self.classes[0][:1]
        added = [name for name in self.classes[step] if name not in before]
        return f"step {step}: + {', '.join(added)}"

    def segmenter(self, step: int) -> Any:
        """The model of a step, ready; the last few stay in memory."""
        if step in self._models:
            self._models.move_to_end(step)
        else:
            source = Source(self.folders[step], str(self.folders[step]))
            self._models[step] = open_segmenter(source, None, False, self.device)
            if len(self._models) > KEPT_MODELS:
                self._models.popitem(last=False)
        return self._models[step]

    def mask(self, step: int, image: Tensor, key: bytes) -> np.ndarray:
        """Class indices H × W of a picture uint8 3 × H × W; `key` tells pictures apart."""
        if (step, key) not in self._masks:
            self._masks[(step, key)] = self.segmenter(step).one(image).numpy()
            if len(self._masks) > KEPT_MASKS:
                self._masks.popitem(last=False)
        return self._masks[(step, key)]


def open_stations(name: str, device: str = "auto") -> Stations:
    """The stations of a run folder or of a model with its line of parents."""
    folder = Path(name).expanduser()
    if folder.is_dir() and not (folder / CONFIG).exists():
        steps = run_steps(folder)
        if steps:
            return Stations(steps, device)
    source = find_source(name)
    if source.is_segformer:
        raise TissError(f"{name}: in transformers' format: make a model of tiss from it with `tiss extend`")
    source.load()
    return Stations(line_of(source.folder), device)


def picture_key(image: Tensor) -> bytes:
    """A hash of a picture's pixels and size."""
    import hashlib

    shape = ",".join(map(str, image.shape)).encode()
    return hashlib.blake2b(shape + image.contiguous().numpy().tobytes(), digest_size=16).digest()


def shrink(image: Tensor, longest: int) -> Tensor:
    """A picture uint8 3 × H × W whose longer side is at most `longest`."""
    height, width = image.shape[-2:]
    if max(height, width) <= longest:
        return image
    factor = longest / max(height, width)
    size = (max(1, round(height * factor)), max(1, round(width * factor)))
    resized = torch.nn.functional.interpolate(image[None].float(), size, mode="bilinear", antialias=True)
    return resized[0].round().clamp(0, 255).to(torch.uint8)
