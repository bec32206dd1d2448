"""Pretrained encoder weights from a local file, a folder or the hub, loaded strictly.

A checkpoint may have a prefix, a classifier or another library's names, which are converted. What is then left
over, missing or of another shape is listed in one line of error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiss.errors import TissError
from tiss.files import read_json, read_tensors
from tiss.models.encoder import Colours, Encoder

DEFAULT = "default"  # the weights that the encoder itself names
PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".tar")
PREFIXES = (
    "",
    "body.encoder.",
    "encoder.",
    "backbone.",
    "module.",
    "model.",
    "vit.",
    "dinov2.",
    "segformer.",
)
CLASSIFIERS = ("head.", "fc.", "classifier.", "pooler.", "head_dist.")
CONFIGS = ["config.json", "preprocessor_config.json"]
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.pth")


def load_pretrained(encoder: Encoder, source: str, *, allow_pickle: bool = False) -> None:
    """Fills `encoder` with the weights of `source`: a file, a folder, a hub name, or "default".

    Where a folder says which mean and deviation its weights were trained with, the encoder takes them over.
    """
    path = find_weights(encoder, source, allow_pickle)
    tensors = read_weights(path, allow_pickle)
    fitted = fit_names(encoder, tensors, path)
    encoder.load_state_dict(fitted)
    colours = find_colours(path.parent) if Path(source).is_dir() or not Path(source).exists() else None
    if colours:
        encoder.mean, encoder.std = colours


def find_weights(encoder: Encoder, source: str, allow_pickle: bool) -> Path:
    """The file behind `source`."""
    path = Path(source).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        return choose_file(path, allow_pickle)
    if source in (DEFAULT, "true", "True"):
        if encoder.hub is None:
            message = f"{source}: {encoder.name} has no published weights that are known here"
            raise TissError(message, setting="model.pretrained")
        source = encoder.hub
    if not looks_like_hub_name(source):
        message = f"{source}: no such file or folder, and not a hub name (owner/name)"
        raise TissError(message, setting="model.pretrained")
    names = [name for name in WEIGHTS if allow_pickle or name.endswith(".safetensors")]
    return choose_file(fetch(source, [*names, *CONFIGS]), allow_pickle)


def choose_file(folder: Path, allow_pickle: bool) -> Path:
    """The weights in a folder, safetensors first."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    listed = ", ".join(WEIGHTS if allow_pickle else WEIGHTS[:1])
    more = "" if allow_pickle else "; model.allow_pickle also looks for .bin and .pth files"
    raise TissError(f"{folder}: holds no weights ({listed}){more}")


def read_weights(path: Path, allow_pickle: bool) -> dict[str, Tensor]:
    """All tensors of a checkpoint by name."""
    if path.suffix == ".safetensors":
        return read_tensors(path)
    if path.suffix not in PICKLES:
        raise TissError(f"{path}: unknown kind of weights; give a .safetensors file")
    if not allow_pickle:
        raise TissError(
            f"{path}: a pickle can run code: convert it to .safetensors, or set model.allow_pickle"
        )
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken or hostile pickle fails in many ways
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TissError(f"{path}: cannot be read as weights alone: {reason}") from error
    return unwrap(loaded, path)


def unwrap(loaded: Any, path: Path) -> dict[str, Tensor]:
    """The table of tensors within what a training script saved."""
    for key in ("state_dict", "model", "teacher", "model_state"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not loaded:
        raise TissError(f"{path}: holds no table of tensors")
    return {str(name): value for name, value in loaded.items() if isinstance(value, Tensor)}


def fit_names(encoder: Encoder, tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The tensors under the encoder's own names, exactly those it has; else an error with the difference."""
    expected = {name: tensor.shape for name, tensor in encoder.state_dict().items()}
    best: dict[str, Tensor] = {}
    for prefix in PREFIXES:
        stripped = {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}
        converted = encoder.convert_pretrained(stripped) if stripped else {}
        if len(expected.keys() & converted.keys()) > len(expected.keys() & best.keys()):
            best = converted
    best = {name: t for name, t in best.items() if name in expected or not name.startswith(CLASSIFIERS)}
    for name in expected:  # batch norm counts its batches; not every library writes that down
        if name.endswith("num_batches_tracked") and name not in best:
            best[name] = torch.zeros((), dtype=torch.int64)
    missing = [name for name in expected if name not in best]
    unexpected = [name for name in best if name not in expected]
    different = [
        f"{name} is {by(best[name].shape)} instead of {by(shape)}"
        for name, shape in expected.items()
        if name in best and best[name].shape != shape
    ]
    kinds = (("missing", missing), ("unexpected", unexpected), ("different", different))
    problems = [f"{word} {len(names)}: {listed(names)}" for word, names in kinds if names]
    if problems:
        raise TissError(f"{path}: does not fit the encoder {encoder.name}; " + "; ".join(problems))
    return best


def by(shape: torch.Size) -> str:
    return "×".join(map(str, shape)) or "a single value"


def listed(names: list[str], most: int = 6) -> str:
    return ", ".join(name[:200] for name in names[:most]) + (", …" if len(names) > most else "")


def find_colours(folder: Path) -> tuple[Colours, Colours] | None:
    """Mean and deviation as timm's or transformers' files beside the weights give them."""
    for name, inner, mean, std in (
        ("config.json", "pretrained_cfg", "mean", "std"),
        ("preprocessor_config.json", None, "image_mean", "image_std"),
    ):
        if not (folder / name).is_file():
            continue
        table = read_json(folder / name)
        table = table.get(inner) if inner and isinstance(table, dict) else table
        if isinstance(table, dict) and is_colours(table.get(mean)) and is_colours(table.get(std)):
            return tuple(map(float, table[mean])), tuple(map(float, table[std]))  # type: ignore[return-value]
    return None


def is_colours(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) == 3 and all(isinstance(part, (int, float)) for part in value)
    )


def looks_like_hub_name(name: str) -> bool:
    """Whether `name` reads like owner/repository rather than a path."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not name.endswith("/")


def fetch(name: str, files: list[str]) -> Path:
    """The repository `name` of the hub as a local folder, with those of `files` that it has."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except (HFValidationError, LocalEntryNotFoundError, OSError) as error:  # HTTP errors are OSErrors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TissError(
            f"{name}: no such file or folder here, and it could not be fetched from the hub: {reason}; "
            "without a network, give the path of a file or folder"
        ) from error
