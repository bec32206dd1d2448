"""Model folders: `config.json` (architecture, classes), `model.safetensors` and `README.md`, the model card.

A step's folder may hold more (scores, a method's state), which this module does not touch.
"""

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
from tiss.models.model import Architecture, SegmentationModel
from tiss.models.pretrained import fetch, looks_like_hub_name

FORMAT = 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


def save_model(model: SegmentationModel, folder: Path, record: Mapping[str, Any] | None = None) -> None:
    """Writes a complete model folder, whole or not at all (an existing folder without a model is filled)."""
    if folder.is_dir() and not (folder / CONFIG).exists():
        write_model(model, folder, record)
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(folder) as temporary:
            write_model(model, temporary, record)


def write_model(model: SegmentationModel, folder: Path, record: Mapping[str, Any] | None = None) -> None:
    """Writes the three files into an existing folder, such as that of a step being stored."""
    write_tensors(folder / WEIGHTS, model.state_dict(), {"format": "pt"})
    config = {
        "format": FORMAT,
        "model_type": "tiss",
        "architecture": {k: v for k, v in dataclasses.asdict(model.architecture).items() if v is not None},
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
    architecture, config = read_config(folder / CONFIG)
    what = (architecture, config["classes"], config["groups"], config["rule"])
    with torch.device("meta"):  # costs no memory, whatever the file claims
        expected = SegmentationModel(*what).state_dict()
    shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in expected.items()}
    tensors = read_tensors(folder / WEIGHTS, shapes)
    if config.get("sha256", digest := file_hash(folder / WEIGHTS)) != digest:
        raise TissError(
            f"{folder / WEIGHTS}: altered since it was saved (its SHA-256 is not config.json's): copy it again"
        )
    with torch.random.fork_rng(devices=[]):  # drawing weights that are replaced must not change a run
        model = SegmentationModel(*what)
    model.load_state_dict(tensors)
    model.record = config["record"]
    return model.eval()


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


CHECKS = (
    ("classes", lambda value: is_list_of(str, value), "a list of names"),
    ("groups", lambda value: is_list_of(list, value), "a list of lists of channels"),
    ("rule", lambda value: value in ("softmax", "sigmoid"), "softmax or sigmoid"),
    ("record", lambda value: isinstance(value, dict), "a table"),
)


def is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def read_config(path: Path) -> tuple[Architecture, dict[str, Any]]:
    """The architecture in config.json and the whole table, each part checked for its type."""
    config = read_json(path)
    if not isinstance(config, dict) or config.get("model_type") != "tiss":
        raise TissError(f"{path}: not a model folder of tiss (model_type is not 'tiss')")
    if config.get("format") != FORMAT:
        raise TissError(f"{path}: format {config.get('format')!r} is unknown; this version reads {FORMAT}")
    config.setdefault("record", {})
    for key, fits, wanted in CHECKS:
        if not fits(config.get(key)):
            raise TissError(f"{path}: {key!r} must be {wanted}")
    try:
        architecture = from_mapping(Architecture, config.get("architecture", {}), "architecture")
    except TypeError as error:
        raise TissError(f"{path}: 'architecture' lacks a part: {error}") from error
    except TissError as error:
        raise TissError(f"{path}: {error}") from error
    if not 1 <= architecture.image_size <= 1 << 20:
        raise TissError(f"{path}: 'image_size' must be a number of pixels, not {architecture.image_size}")
    return architecture, config


def find_folder(source: str | Path, allow_download: bool) -> Path:
    """A local folder as it is; otherwise the hub's repository of that name, downloaded into the hub's cache."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if not looks_like_hub_name(str(source)):
        raise TissError(f"{source}: no such model folder")
    if not allow_download:
        raise TissError(f"{source}: no such folder, and downloads are not allowed")
    return fetch(str(source), [CONFIG, WEIGHTS, CARD])


def card(model: SegmentationModel) -> str:
    """The model card."""
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
