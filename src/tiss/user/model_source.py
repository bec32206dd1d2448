"""Where a model comes from: a model folder, a run, the hub; and its parents."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tiss.engine.device import choose_device
from tiss.engine.predictor import Predictor
from tiss.engine.run_folder import RunFolder
from tiss.errors import TissError
from tiss.files import existing, read_json
from tiss.models.folder import CONFIG, WEIGHTS, file_hash, find_folder, from_pretrained
from tiss.models.model import SegmentationModel
from tiss.models.pretrained import fetch, looks_like_hub_name

SMALLEST, LARGEST = 16, 8192  # of the size, in pixels
MOST_PARENTS = 200  # more are a cycle or a mistake
SEGFORMER_FILES = [
    CONFIG,
    WEIGHTS,
    "pytorch_model.bin",
    "preprocessor_config.json",
    "README.md",
    "method.safetensors",
]


@dataclass(frozen=True)
class Source:
    """A model's folder, and the name that the user gave."""

    folder: Path
    name: str

    @property
    def config(self) -> dict[str, Any]:
        config = read_json(self.folder / CONFIG)
        if not isinstance(config, dict):
            raise TissError(f"{self.folder / CONFIG}: not a model's configuration")
        return config

    @property
    def is_segformer(self) -> bool:
        return self.config.get("model_type") == "segformer"

    def load(self) -> SegmentationModel:
        return from_pretrained(self.folder)

    def hash(self) -> str:
        """SHA-256 of the weights."""
        pickled = self.folder / "pytorch_model.bin"
        weights = self.folder / WEIGHTS
        return file_hash(pickled if pickled.is_file() and not weights.is_file() else weights)


def find_source(name: str) -> Source:
    """The model called `name`: a model folder, the last step of a run folder, or a hub name."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        if (folder / CONFIG).exists():
            return Source(folder, name)
        steps = run_steps(folder)
        if steps:
            return Source(steps[-1], str(steps[-1]))
        raise TissError(f"{name}: no model in this folder: it has no {CONFIG}")
    if looks_like_hub_name(name):
        return Source(fetch(name, SEGFORMER_FILES), name)
    return Source(find_folder(name, allow_download=False), name)


def open_predictor(source: Source, size: int | None, native: bool, device: str) -> Predictor:
    """The model ready to predict, at `size` or at its own."""
    if size is not None and not SMALLEST <= size <= LARGEST:
        raise TissError(f"{size}: give a number of pixels from {SMALLEST} to {LARGEST}", setting="size")
    chosen = torch.device(choose_device(device))
    if source.is_segformer:
        raise TissError(
            f"{source.name}: a model in transformers' format: `tiss extend` makes a model of tiss from it"
        )
    return Predictor(source.load(), size, native, chosen)


def run_steps(folder: Path) -> list[Path]:
    """The model folders of a run's finished steps, first to last."""
    steps: list[Path] = []
    while ((step := RunFolder(folder).step(len(steps)).path) / CONFIG).exists():
        steps.append(step)
    return steps


def line_of(folder: Path) -> list[Path]:
    """The model folders that led to `folder`, the first model first, `folder` itself last.

    An extended model names its parent by a relative path and the hash of its weights; a step of a run follows the
    step before it. The line ends where a parent is missing or has changed.
    """
    line = [folder]
    while len(line) < MOST_PARENTS:
        parent = parent_of(line[0])
        if parent is None or any(_same(parent, known) for known in line):
            return line
        line.insert(0, parent)
    return line


def parent_of(folder: Path) -> Path | None:
    """The folder of the model from which `folder`'s model was extended, if it exists and is unchanged."""
    config = read_json(folder / CONFIG)
    record = config.get("record") if isinstance(config, dict) else None
    parent = record.get("parent") if isinstance(record, dict) else None
    if isinstance(parent, dict) and isinstance(parent.get("path"), str):
        if os.path.isabs(parent["path"]):  # tiss writes relative paths only
            return None
        found = folder / parent["path"]
        # os.path, which takes an impossible file name for a missing one
        whole = os.path.isfile(found / CONFIG) and os.path.isfile(found / WEIGHTS)
        return found if whole and file_hash(found / WEIGHTS) == parent.get("sha256") else None
    name, _, number = folder.resolve().name.partition("-")
    if name == "step" and number.isdigit() and int(number) > 0:
        before = folder.resolve().parent / f"step-{int(number) - 1}"
        return before if (before / CONFIG).is_file() else None
    return None


def describe_parent(source: Source, out: Path) -> dict[str, str]:
    """What an extended model records of its parent: its path relative to `out`, and its weights' hash."""
    if (
        not Path(source.name).expanduser().exists()
    ):  # from the hub: its path in the cache means nothing elsewhere
        return {"name": source.name, "sha256": source.hash()}
    path = os.path.relpath(source.folder.resolve(), out.resolve())
    return {"name": source.folder.resolve().name, "path": path, "sha256": source.hash()}


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def check_out(out: str) -> Path:
    """The path to write to: nothing may be there yet, and its folder must be writable."""
    place = Path(out).expanduser()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise TissError(f"{out}: exists already: choose another name", setting="out")
    above = existing(place)
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise TissError(f"{out}: {above} is not writable: choose another place", setting="out")
    return place
