"""Pretrained encoder weights from a local file, a folder or the hub, loaded strictly.

A checkpoint may have a prefix, a classifier or another library's names, which are converted. What is then left
over, missing or of another shape is listed in one line of error.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiss.errors import TissError
from tiss.files import read_json, read_tensors
from tiss.models.encoder import Colours, Encoder

PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".tar")
KINDS = ("body.encoder", "encoder", "backbone", "module", "model", "vit", "dinov2", "segformer")
PREFIXES = ("", *(f"{kind}." for kind in KINDS))
CLASSIFIERS = ("head.", "fc.", "classifier.", "pooler.", "head_dist.")
CONFIGS = ["config.json", "preprocessor_config.json"]
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.pth")


def load_pretrained(encoder: Encoder, source: str, *, allow_pickle: bool = False) -> None:
    """Fills `encoder` with the weights of `source`: a file, a folder, a hub name, or "default".

    Where a folder says which mean and deviation its weights were trained with, the encoder takes them over.
    """
    path = Path(source).expanduser()
    alone = path.is_file()
    if not path.exists():
        name = encoder.hub if source in ("default", "true", "True") else source
        if name is None or not looks_like_hub_name(name):
            problem = f"{encoder.name} has no published weights that are known here"
            if name is not None:
                problem = "no such file or folder, and not a hub name (owner/name)"
            raise TissError(f"{source}: {problem}", setting="model.pretrained")
        path = fetch(name, [*(WEIGHTS if allow_pickle else WEIGHTS[:1]), *CONFIGS])
    if not alone:
        path = choose_file(path, allow_pickle)
    encoder.load_state_dict(fit_names(encoder, read_weights(path, allow_pickle), path))
    if not alone and (colours := find_colours(path.parent)):
        encoder.mean, encoder.std = colours


def choose_file(folder: Path, allow_pickle: bool) -> Path:
    """The weights in a folder, safetensors first."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    more = "" if allow_pickle else "; model.allow_pickle also looks for .bin and .pth files"
    raise TissError(
        f"{folder}: holds no weights ({', '.join(WEIGHTS if allow_pickle else WEIGHTS[:1])}){more}"
    )


def read_weights(path: Path, allow_pickle: bool) -> dict[str, Tensor]:
    """All tensors of a checkpoint by name."""
    if path.suffix == ".safetensors":
        return read_tensors(path)
    if path.suffix not in PICKLES:
        raise TissError(f"{path}: unknown kind of weights; give a .safetensors file")
    if not allow_pickle:
        raise TissError(
            f"{path}: a pickle can run code: convert it to .safetensors, or set this to true",
            setting="model.allow_pickle",
        )
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken or hostile pickle fails in many ways
        raise TissError(f"{path}: cannot be read as weights alone: {first_line(error)}") from error
    # training scripts save more beside the table of tensors
    for key in ("state_dict", "model", "teacher", "model_state"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not loaded:
        raise TissError(f"{path}: holds no table of tensors")
    return {str(name): value for name, value in loaded.items() if isinstance(value, Tensor)}


def fit_names(encoder: Encoder, tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The tensors under the encoder's own names, exactly those it has; else an error with the difference."""
    expected = encoder.state_dict()
    stripped = [
        {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}
        for prefix in PREFIXES
    ]
    converted = [encoder.convert_pretrained(one) for one in stripped if one]
    best = max(converted, key=lambda one: len(expected.keys() & one.keys()), default={})
    best = {name: t for name, t in best.items() if name in expected or not name.startswith(CLASSIFIERS)}
    for name in expected:  # batch norm counts its batches; not every library writes that down
        if name.endswith("num_batches_tracked") and name not in best:
            best[name] = torch.zeros((), dtype=torch.int64)
    found, wanted = (
        {name: "×".join(map(str, tensor.shape)) or "a single value" for name, tensor in table.items()}
        for table in (best, expected)
    )
    common = [name for name in wanted if name in found]
    differences = {
        "missing": [name for name in wanted if name not in found],
        "unexpected": [name for name in found if name not in wanted],
        "different": [f"{n} is {found[n]} instead of {wanted[n]}" for n in common if found[n] != wanted[n]],
    }
    problems = [
        f"{kind} {len(names)}: " + ", ".join(name[:200] for name in names[:6]) + ", …" * (len(names) > 6)
        for kind, names in differences.items()
        if names
    ]
    if problems:
        raise TissError(f"{path}: does not fit the encoder {encoder.name}; " + "; ".join(problems))
    return best


def find_colours(folder: Path) -> tuple[Colours, Colours] | None:
    """Mean and deviation as timm's or transformers' files beside the weights give them."""
    for name, keys in zip(CONFIGS, (("mean", "std"), ("image_mean", "image_std")), strict=True):
        table = read_json(folder / name) if (folder / name).is_file() else None
        if name == "config.json" and isinstance(table, dict):
            table = table.get("pretrained_cfg")
        if isinstance(table, dict):
            mean, std = (as_colours(table.get(key)) for key in keys)
            if mean and std:
                return mean, std
    return None


def as_colours(value: Any) -> Colours | None:
    fits = isinstance(value, list) and len(value) == 3 and all(isinstance(one, int | float) for one in value)
    return (float(value[0]), float(value[1]), float(value[2])) if fits else None


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
        raise TissError(
            f"{name}: no such file or folder here, and it could not be fetched from the hub: "
            f"{first_line(error)}; without a network, give the path of a file or folder"
        ) from error


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
