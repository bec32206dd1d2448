"""The configuration: nested dataclasses whose fields are flags, YAML keys and Python arguments at once.

A section with a field `name` can be given by that name alone: `--data voc --data.root DIR` and
`data: {name: voc, root: DIR}` are the same, and so is `data: voc` where nothing else is set. `None` always means
"what the recipe, the data set or the encoder says"; the run folder records the resolved value.
"""

import dataclasses
import math
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from tiss.errors import TissError, suggest

C = TypeVar("C")
# the smallest value of a setting that makes sense
LEAST = {
    **dict.fromkeys(
        ("data.resize", "data.crop", "model.image_size", "eval.batch", "eval.size", "eval.images"), 1
    ),
    **dict.fromkeys(("train.epochs", "train.step_epochs", "train.batch", "train.accumulate"), 1),
    **dict.fromkeys(("train.save_every", "train.log_every"), 1),
    **dict.fromkeys(("train.lr", "train.step_lr", "train.encoder_lr", "train.weight_decay"), 0),
    **dict.fromkeys(("train.momentum", "train.power", "train.warmup", "train.clip", "train.workers"), 0),
    "train.timeout": 0.01,
}
REQUIRED = dataclasses.MISSING  # the default of a setting that must be given
REMOVED = {"train.shard"}  # settings of an earlier version: files that name them still open
TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def setting(
    default: Any, help: str, *, sets: str = "", aliases: Sequence[str] = (), positional: bool = False
) -> Any:
    """A dataclass field with its help beside it.

    Args:
        sets: for a flag of a command, the settings of a run that it sets under another name ("train.lr train.step_lr"):
            errors that name one of them get the flag's name.
        aliases: names of an earlier version; they still work, with a warning.
        positional: for a flag of a command, that it is given without its name.
    """
    about = {"help": help, "sets": tuple(sets.split()), "aliases": tuple(aliases), "positional": positional}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=about)
    return field(default=default, metadata=about)


def warn_renamed(old: str, new: str) -> None:
    """One line for whoever still uses an old name."""
    print(f"tiss: {old} is now called {new}; the old name will be removed in 0.3", file=sys.stderr)


@dataclass(frozen=True)
class DataConfig:
    """The data set, and how images are cropped and augmented for training."""

    name: str = setting("shapes", "shapes, voc, ade20k, cityscapes, folder, or a plug-in's data set")
    root: str | None = setting(None, "folder that holds the data set (shapes needs none)")
    resize: int | None = setting(None, "resize the shorter side to this before the random scale (None: no)")
    crop: int | None = setting(None, "side of the training crop and of the test image (None: the data's)")
    scale: tuple[float, float] | None = setting(None, "range of the random scale in training (None: 0.5 2)")
    flip: bool = setting(True, "flip training images at random")
    photometric: bool = setting(False, "change brightness, contrast, saturation and hue at random")
    on_error: Literal["stop", "skip"] = setting("stop", "unreadable images: stop, or leave all out")


@dataclass(frozen=True)
class ProtocolConfig:
    """A published protocol of labels and averages; each part can be set by itself."""

    name: str = setting("paper", "published variant: paper, mib or plop")
    border: Literal["ignore", "background"] | None = setting(None, "void border in training")
    unseen: Literal["background", "ignore"] | None = setting(None, "future classes in the test")
    test_images: Literal["all", "seen"] | None = setting(None, "test all images, or those with a seen class")
    other: Literal["background", "ignore"] | None = setting(None, "label 0 in the test, if no class (ADE20K)")


@dataclass(frozen=True)
class ModelConfig:
    """Encoder, decoder and where the weights come from."""

    encoder: str | None = setting(None, "encoder's name, see `tiss encoders` (None: the data set's default)")
    decoder: str | None = setting(
        None, "linear, levels, mlp, deeplabv3, deeplabv3plus or mask (None: the encoder's)"
    )
    pretrained: str | None = setting(None, "local file, folder or hub name with pretrained encoder weights")
    image_size: int | None = setting(None, "image size of the position embedding (None: the crop)")
    drop_path: float = setting(0.0, "stochastic depth rate of the encoder")
    allow_pickle: bool = setting(False, "also read .pth files (weights only); safetensors need no such trust")


@dataclass(frozen=True)
class TrainConfig:
    """Optimizer, schedule and machine."""

    recipe: Literal["paper", "tuned", "demo"] | None = setting(
        None,
        "paper: SGD as published; tuned: for trained weights; demo: from scratch (None: by the weights)",
    )
    epochs: int | None = setting(None, "epochs of step 0")
    step_epochs: int | None = setting(None, "epochs of every later step (None: as step 0)")
    batch: int | None = setting(None, "images per optimizer step, over all processes")
    accumulate: int = setting(1, "split each batch into this many parts to save memory")
    optimizer: Literal["sgd", "adamw"] | None = setting(None, "optimizer")
    lr: float | None = setting(None, "learning rate of step 0")
    step_lr: float | None = setting(None, "learning rate of every later step")
    encoder_lr: float | None = setting(None, "factor of the encoder's learning rate")
    weight_decay: float | None = setting(None, "weight decay")
    momentum: float = setting(0.9, "momentum of SGD")
    power: float = setting(0.9, "power of the polynomial decay")
    warmup: int | None = setting(None, "iterations of linear warm-up, at most a tenth of a step's")
    clip: float | None = setting(None, "largest gradient norm (0: no clipping)")
    precision: Literal["auto", "float32", "bf16"] = setting(
        "auto", "auto: bf16 on a GPU, and for kept features on CPUs with bf16 instructions; otherwise float32"
    )
    keep_features: bool = setting(
        False,
        "where nothing but the head is trained, a CPU computes the features of an image once and keeps them on disk "
        "until the command ends; on any device sums are over whole images, and heads see two crops of each",
    )
    device: str = setting("auto", "auto, cpu, cuda or mps")
    loader: Literal["auto", "workers", "memory"] = setting("auto", "memory: keep all decoded images there")
    workers: int | None = setting(None, "loader processes (None: by the machine)")
    fused: Literal["auto", "on", "off"] = setting("auto", "losses without full-resolution logits")
    compile: Literal["auto", "on", "off"] = setting(
        "auto", "torch.compile (auto: transformers on a GPU; on: all models)"
    )
    checkpointing: bool = setting(False, "recompute activations in the backward pass to save memory")
    deterministic: bool = setting(False, "bitwise reproducible on a GPU, or an error; slower")
    save_every: int = setting(500, "iterations between checkpoints within a step")
    log_every: int = setting(20, "iterations between lines of metrics.jsonl")
    tracker: str | None = setting(None, "tensorboard, wandb, mlflow, … through accelerate")
    timeout: float = setting(30.0, "minutes that a process waits for the others before the run ends")


@dataclass(frozen=True)
class EvalConfig:
    """How a step is tested."""

    mode: Literal["crop", "slide"] | None = setting(
        None, "crop: resized and cut, as published; slide: whole image (None: crop, on cityscapes slide)"
    )
    batch: int = setting(16, "images per batch")
    size: int | None = setting(None, "shorter side and window (None: the training crop)")
    images: int | None = setting(None, "for a trial run: test on this many images only (tables say so)")


@dataclass(frozen=True)
class RunConfig:
    """One experiment."""

    data: DataConfig = field(default_factory=DataConfig)
    task: str | list | None = setting(
        None, "a-b (a classes, then b per step) or groups: 'cat,dog/person' (None: the data's)"
    )
    setup: Literal["overlapped", "disjoint", "sequential", "partitioned", "domains"] = setting(
        "overlapped",
        "which images a step sees; partitioned: each in one step; sequential: old labels too; domains: by origin",
    )
    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)
    order: str | list | None = setting(None, "order of classes: names or numbers with commas, or random:SEED")
    lists: str | None = setting(None, "folder of train-K.npy or .txt, a list per step (ADE20K's split)")
    holdout: float = setting(0.0, "share of the training images that is held out and replaces the test set")
    memory: int = setting(
        0, "training images of earlier steps that are kept and shown again, in all, balanced by class"
    )
    method: Any = setting("tiss", "method's name, see `tiss methods`; its settings follow as --method.*")
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    seed: int = setting(0, "seed of every random choice")
    base: str | None = setting(None, "run or step-0 folder whose first step is reused instead of trained")
    out: str | None = setting(None, "run folder (None: runs/<data>-<task>-<setup>-<method>-seed<seed>)")

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            section, _, key = name.partition(".")
            value = getattr(getattr(self, section), key)
            if value is not None and not least <= value < math.inf:
                raise TissError(f"{value}: give a number from {least:g} on", setting=name)
        if self.data.scale and not 0 < self.data.scale[0] <= self.data.scale[1] < math.inf:
            given = ",".join(f"{one:g}" for one in self.data.scale)
            raise TissError(f"{given}: give two numbers above 0, the smaller one first", setting="data.scale")


def to_mapping(config: Any) -> dict[str, Any]:
    """A dataclass as plain nested dictionaries: what goes into YAML and JSON."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            named = {"name": value.name} if hasattr(value, "name") else {}
            return named | {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return value

    result: dict[str, Any] = plain(config)
    return result


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, section by section; naming another method or data set drops the old one's settings."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, Mapping) or isinstance(below, Mapping):
            low = below if isinstance(below, Mapping) else {} if below is None else {"name": below}
            high = value if isinstance(value, Mapping) else {"name": value}
            if "name" in high and "name" in low and high["name"] != low["name"]:
                low = {}
            merged[key] = merge(low, high)
        else:
            merged[key] = value
    return merged


def from_mapping(cls: type[C], mapping: Mapping[str, Any], where: str = "") -> C:
    """Builds `cls` from plain dictionaries; unknown keys and wrong types are errors that name the key."""
    if not isinstance(mapping, Mapping):
        raise TissError(f"{where or 'configuration'}: expected key: value pairs, found {mapping!r}")
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    known = {name: f.name for f in fields for name in (*f.metadata.get("aliases", ()), f.name)}
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for given, value in mapping.items():
        if f"{where}.{given}" in REMOVED:
            if value:
                print(f"tiss: {where}.{given} no longer exists: it is ignored", file=sys.stderr)
            continue
        if given not in known:
            raise TissError(suggest(str(given), known.values(), f"key in {where}" if where else "key"))
        key = known[given]
        path = f"{where}.{key}" if where else key
        if key != given:
            warn_renamed(str(given), path)
        hint = hints[key]
        if dataclasses.is_dataclass(hint):
            if isinstance(value, str):
                value = {"name": value}
            values[key] = from_mapping(hint, value or {}, path)  # type: ignore[arg-type]
        else:
            values[key] = convert(value, hint, path)
    return cls(**values)


def convert(value: Any, hint: Any, where: str) -> Any:
    """`value`, from YAML or from a flag's text, as the type `hint`; else an error that names the setting."""
    if hint is Any:
        return value
    options = _options(hint)
    if type(None) in options and str(value).lower() in ("none", "null"):
        return None
    if value is None:
        raise TissError("needs a value", setting=where)
    for option in options:
        with suppress(ValueError, TypeError, KeyError, OverflowError):
            return _convert_one(value, option)
    raise TissError(f"takes {describe_type(hint)}, not {value!r}", setting=where)


def _convert_one(value: Any, hint: Any) -> Any:
    """`value` as one type; an error of Python's where it is none."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {str(choice): choice for choice in inner}[str(value)]
    if origin in (tuple, list):
        items = value.replace(",", " ").split() if isinstance(value, str) else value
        kinds = [kind for kind in inner if kind is not Ellipsis]
        whole = origin is list or Ellipsis in inner or len(items) == len(kinds)
        if not isinstance(items, (list, tuple)) or not whole:
            raise ValueError(value)
        return origin(_convert_one(item, kinds[min(i, len(kinds) - 1)]) for i, item in enumerate(items))
    if hint is bool:
        return value if isinstance(value, bool) else TRUTHS[str(value).lower()]
    if hint in (int, float):
        number = float(value)
        if isinstance(value, bool) or (hint is int and number != int(number)):
            raise ValueError(value)
        return number if hint is float else value if isinstance(value, int) else int(number)
    if not isinstance(value, (str, int, float) if hint is str else hint):
        raise ValueError(value)
    return str(value) if hint is str else value


def _options(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def describe_type(hint: Any) -> str:
    """A type in plain words: 'one of on, off', 'a whole number'."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Any: "a name"}
    parts = []
    for option in _options(hint):
        if option is type(None):
            continue
        if typing.get_origin(option) is Literal:
            parts.append("one of " + ", ".join(map(str, typing.get_args(option))))
        elif typing.get_origin(option) in (tuple, list):
            parts.append("numbers separated by commas")
        else:
            parts.append(words.get(option, getattr(option, "__name__", str(option))))
    return " or ".join(parts)
