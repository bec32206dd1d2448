"""Model folders: everything needed to use a model again, in files that run no code.

`config.json` names the architecture and the classes, `model.safetensors` holds the weights, `README.md` is
the card. The folder of a step may hold more (scores, a method's state); this module leaves that alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tiss.config import from_mapping
from tiss.errors import TissError
from tiss.files import (
    atomic_folder,
    open_regular,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
    write_text,
)
from tiss.models.build import from_architecture
from tiss.models.hub import fetch, looks_like_hub_name
from tiss.models.model import Architecture, SegmentationModel

FORMAT = 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


def save_model(model: SegmentationModel, folder: Path, record: Mapping[str, Any] | None = None) -> None:
    """Writes a complete model folder, whole or not at all (an empty folder is just filled)."""
    if folder.is_dir() and not (folder / CONFIG).exists():
        write_model(model, folder, record)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder) as temporary:
        write_model(model, temporary, record)


def write_model(model: SegmentationModel, folder: Path, record: Mapping[str, Any] | None = None) -> None:
    """Writes the three files into a folder that is there already, such as a step's while it is made."""
    write_tensors(folder / WEIGHTS, model.state_dict(), {"format": "pt"})
    config = {
        "format": FORMAT,
        "model_type": "tiss",
        "architecture": dataclasses.asdict(model.architecture),
        "classes": model.classes,
        "id2label": {str(channel): name for channel, name in enumerate(model.classes)},
        "groups": model.groups,
        "rule": model.rule,
        "record": model.record | dict(record or {}),
        "sha256": file_hash(folder / WEIGHTS),
    }
    write_json(folder / CONFIG, config)
    write_text(folder / CARD, card(model))


def from_pretrained(source: str | Path, *, allow_download: bool = True) -> SegmentationModel:
    """The model of a folder, or of the hub; shapes are checked before any weight is read."""
    folder = find_folder(source, allow_download)
    config = read_json(folder / CONFIG)
    architecture, classes, groups, rule, record = read_config(config, folder / CONFIG)
    with torch.device("meta"):  # costs no memory, whatever the file claims
        expected = from_architecture(architecture, classes, groups, rule).state_dict()
    shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in expected.items()}
    tensors = read_tensors(folder / WEIGHTS, shapes)
    check_hash(config, folder)
    with torch.random.fork_rng(devices=[]):  # weights drawn only to be replaced shall move no run's chance
        model = from_architecture(architecture, classes, groups, rule)
    model.load_state_dict(tensors)
    model.record = record
    return model.eval()


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with open_regular(path) as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()


def check_hash(config: Mapping[str, Any], folder: Path) -> None:
    """Refuses weights that are not those that config.json was written with (older folders do not say)."""
    if "sha256" in config and config["sha256"] != file_hash(folder / WEIGHTS):
        raise TissError(
            f"{folder / WEIGHTS}: altered since it was saved (its SHA-256 is not config.json's): copy it anew"
        )


def read_config(
    config: Any, path: Path
) -> tuple[Architecture, list[str], list[list[int]], Any, dict[str, Any]]:
    """The parts of config.json, each of the type it must have."""
    if not isinstance(config, dict) or config.get("model_type") != "tiss":
        raise TissError(f"{path}: not a model folder of tiss (model_type is not 'tiss')")
    if config.get("format") != FORMAT:
        raise TissError(
            f"{path}: format {config.get('format')!r} is unknown here: this version reads {FORMAT}"
        )
    classes, groups, rule = config.get("classes"), config.get("groups"), config.get("rule")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise TissError(f"{path}: 'classes' must be a list of names")
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise TissError(f"{path}: 'groups' must be a list of lists of channels")
    if rule not in ("softmax", "sigmoid"):
        raise TissError(f"{path}: 'rule' must be softmax or sigmoid, not {rule!r}")
    record = config.get("record", {})
    if not isinstance(record, dict):
        raise TissError(f"{path}: 'record' must be a table")
    try:
        architecture = from_mapping(Architecture, config.get("architecture", {}), "architecture")
    except TypeError as error:
        raise TissError(f"{path}: 'architecture' lacks a part: {error}") from error
    except TissError as error:
        raise TissError(f"{path}: {error}") from error
    if not 1 <= architecture.image_size <= 1 << 20:
        raise TissError(f"{path}: 'image_size' must be a number of pixels, not {architecture.image_size}")
    return architecture, classes, groups, rule, record


def find_folder(source: str | Path, allow_download: bool) -> Path:
    """A local folder as it is; else the hub's repository of that name, fetched into the hub's cache."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if not looks_like_hub_name(str(source)):
        raise TissError(f"{source}: no such model folder")
    if not allow_download:
        raise TissError(f"{source}: no such folder, and downloads are not allowed")
    return fetch(str(source), [CONFIG, WEIGHTS, CARD])


def card(model: SegmentationModel) -> str:
    """The model card: what a reader of the folder wants to know first."""
    architecture = model.architecture
    steps = "\n".join(
        f"| {step} | {', '.join(model.classes[channel] for channel in group)} |"
        for step, group in enumerate(model.groups)
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return f"""---
library_name: tiss
pipeline_tag: image-segmentation
tags: [semantic-segmentation, incremental-learning]
---
# {architecture.encoder} with {len(model.classes) - 1} classes learned in {len(model.groups)} step(s)

A semantic segmentation model of tiss: encoder `{architecture.encoder}`, decoder
`{architecture.decoder}`, head `{architecture.head}`, {parameters / 1e6:.1f} M parameters.

```python
import tiss

model = tiss.from_pretrained("this-folder")
output = model(images)  # uint8, N × 3 × H × W, RGB; the model normalises and pads
labels = model.predict_labels(output)  # N × H × W; 0 is the background
```

| step | classes |
|---|---|
{steps}
"""
