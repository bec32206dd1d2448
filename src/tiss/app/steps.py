"""The models that the slider goes through, and what each predicts for an image."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiss.engine.predictor import Predictor
from tiss.errors import TissError
from tiss.files import read_json
from tiss.models.folder import CONFIG
from tiss.user.model_source import Source, find_source, line_of, open_predictor, run_steps

KEPT_MODELS, KEPT_MASKS = 3, 64


class Steps:
    """A run's steps, or a model with its parents, first to last. Models are loaded when they are needed."""

    def __init__(self, folders: Sequence[Path], device: str = "auto") -> None:
        self.folders = list(folders)
        self.device = device
        configs = [_read_config(folder) for folder in folders]
        self.classes: list[list[str]] = [config["classes"] for config in configs]
        self.records: list[dict[str, Any]] = [config.get("record", {}) for config in configs]
        self.reports = [_read_report(folder) for folder in folders]
        self._predictors: OrderedDict[int, Predictor] = OrderedDict()
        self._masks: OrderedDict[tuple[int, bytes], np.ndarray] = OrderedDict()
        self.predictor(len(self) - 1)  # a damaged folder is an error of the command, not of a visitor's click

    def __len__(self) -> int:
        return len(self.folders)

    def title(self, step: int) -> str:
        """What a step added: 'step 1: + star'."""
        before = self.classes[step - 1] if step else self.classes[0][:1]
        added = [name for name in self.classes[step] if name not in before]
        return f"step {step}: + {', '.join(added)}"

    def predictor(self, step: int) -> Predictor:
        """The model of a step; the last few stay in memory."""
        if step not in self._predictors:
            source = Source(self.folders[step], str(self.folders[step]))
            self._predictors[step] = open_predictor(source, None, False, self.device)
        return _recent(self._predictors, step, KEPT_MODELS)

    def mask(self, step: int, image: Tensor, key: bytes) -> np.ndarray:
        """Class indices H × W of an image uint8 3 × H × W; `key` is its hash."""
        if (step, key) not in self._masks:
            self._masks[(step, key)] = self.predictor(step).one(image).numpy()
        return _recent(self._masks, (step, key), KEPT_MASKS)


def _recent(cache: OrderedDict[Any, Any], key: Any, most: int) -> Any:
    """The entry `key`, as the most recent of at most `most` entries."""
    cache.move_to_end(key)
    while len(cache) > most:
        cache.popitem(last=False)
    return cache[key]


def _read_config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or not isinstance(config.get("classes"), list):
        raise TissError(f"{folder / CONFIG}: not a model folder of tiss")
    return config


def _read_report(folder: Path) -> dict[str, dict[str, Any]]:
    """The classes of a step's report.json by name; empty where there is none."""
    path = folder / "report.json"
    found = read_json(path) if path.is_file() else None
    rows = found.get("classes") if isinstance(found, dict) else None
    return {str(row["name"]): row for row in rows or [] if isinstance(row, dict) and "name" in row}


def open_steps(name: str, device: str = "auto") -> Steps:
    """The steps of a run folder, or of a model with its parents."""
    folder = Path(name).expanduser()
    if folder.is_dir() and not (folder / CONFIG).exists():
        steps = run_steps(folder)
        if steps:
            return Steps(steps, device)
    source = find_source(name)
    if source.is_segformer:
        raise TissError(
            f"{name}: a model in transformers' format: `tiss extend` makes a model of tiss from it"
        )
    source.load()
    return Steps(line_of(source.folder), device)


def image_key(image: Tensor) -> bytes:
    """A hash of an image's pixels and size."""
    shape = ",".join(map(str, image.shape)).encode()
    return hashlib.blake2b(shape + image.contiguous().numpy().tobytes(), digest_size=16).digest()


def shrink(image: Tensor, longest: int) -> Tensor:
    """An image uint8 3 × H × W whose longer side is at most `longest`."""
    height, width = image.shape[-2:]
    if max(height, width) <= longest:
        return image
    factor = longest / max(height, width)
    size = (max(1, round(height * factor)), max(1, round(width * factor)))
    resized = torch.nn.functional.interpolate(image[None].float(), size, mode="bilinear", antialias=True)
    return resized[0].round().clamp(0, 255).to(torch.uint8)
