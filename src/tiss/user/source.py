"""Where a model comes from: a model folder, a run, the hub; and the line of models before it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tiss.engine.results import step_folder
from tiss.engine.world import choose_device
from tiss.errors import TissError
from tiss.files import read_json
from tiss.models.folder import CONFIG, WEIGHTS, file_hash, find_folder, from_pretrained
from tiss.models.hub import fetch, looks_like_hub_name
from tiss.models.model import SegmentationModel
from tiss.user.choices import seen_size
from tiss.user.segment import Segmenter

SMALLEST, LARGEST = 16, 8192  # pixels of --size
LONGEST_LINE = 200  # parents: more are a ring or a mistake
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
    """A model's folder, and what the user called it."""

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
    """The model that `name` means: a model folder, the last step of a run folder, or a hub name."""
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


def open_segmenter(source: Source, size: int | None, native: bool, device: str) -> Segmenter:
    """The model ready to look at pictures, at `size` or at its own."""
    if size is not None and not SMALLEST <= size <= LARGEST:
        raise TissError(f"--size {size}: give a number of pixels from {SMALLEST} to {LARGEST}")
    chosen = torch.device(choose_device(device))
    if source.is_segformer:
        raise TissError(
            f"{source.name}: in transformers' format: make a model of tiss from it with `tiss extend`"
        )
    model = source.load().to(chosen)
    return Segmenter(model, size or seen_size(model), native, chosen)


def run_steps(folder: Path) -> list[Path]:
    """The model folders of a run's finished steps, first to last."""
    steps: list[Path] = []
    while (step_folder(folder, len(steps)) / CONFIG).exists():
        steps.append(step_folder(folder, len(steps)))
    return steps


def line_of(folder: Path) -> list[Path]:
    """The model folders that led to `folder`, the first model first, `folder` itself last.

    An extended model names its parent by a path relative to itself and by the hash of its weights; a step of
    a run follows the step before it. The line ends where a parent is gone or is no longer what it was.
    """
    line = [folder]
    while len(line) < LONGEST_LINE:
        parent = parent_of(line[0])
        if parent is None or any(_same(parent, known) for known in line):
            return line
        line.insert(0, parent)
    return line


def parent_of(folder: Path) -> Path | None:
    """The folder of the model that `folder`'s model was made from, if it is still there and unchanged."""
    config = read_json(folder / CONFIG)
    record = config.get("record") if isinstance(config, dict) else None
    parent = record.get("parent") if isinstance(record, dict) else None
    if isinstance(parent, dict) and isinstance(parent.get("path"), str):
        if os.path.isabs(parent["path"]):  # only written by who wants to point somewhere
            return None
        found = folder / parent["path"]
        # os.path, since a name that no file can have is simply not there
        whole = os.path.isfile(found / CONFIG) and os.path.isfile(found / WEIGHTS)
        return found if whole and file_hash(found / WEIGHTS) == parent.get("sha256") else None
    name, _, number = folder.resolve().name.partition("-")
    if name == "step" and number.isdigit() and int(number) > 0:
        before = folder.resolve().parent / f"step-{int(number) - 1}"
        return before if (before / CONFIG).is_file() else None
    return None


def describe_parent(source: Source, out: Path) -> dict[str, str]:
    """What an extended model keeps of its parent: the way to it from `out`, and its weights' hash."""
    if (
        not Path(source.name).expanduser().exists()
    ):  # from the hub: its place in the cache says nothing elsewhere
        return {"name": source.name, "sha256": source.hash()}
    path = os.path.relpath(source.folder.resolve(), out.resolve())
    return {"name": source.folder.resolve().name, "path": path, "sha256": source.hash()}


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
