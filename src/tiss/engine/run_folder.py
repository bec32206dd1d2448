"""What a run writes and who may write it: the run folder and its step folders; when two runs are the same.

docs/design.md lists the files.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch
import yaml
from torch import Tensor

from tiss import __version__
from tiss.config import RunConfig, from_mapping, to_mapping
from tiss.engine.checkpoint import Journal
from tiss.errors import TissError
from tiss.files import (
    Lock,
    atomic_folder,
    make_folder,
    read_json,
    read_tensors,
    read_yaml,
    recover,
    write_tensors,
    write_text,
)
from tiss.methods.base import METHODS, settings_from
from tiss.models import CONFIG, SegmentationModel, from_pretrained

if TYPE_CHECKING:
    from tiss.engine.device import World

PACKAGES = ("torch", "numpy", "pillow", "safetensors", "accelerate", "timm", "transformers", "triton")
STATE, CONFUSION = "method.safetensors", "confusion.safetensors"
KEPT = "method_state"  # whether there is one, in a model's record
# settings that may differ between the parts of one run: they change where and how fast, not what comes out
MACHINE = (
    *("device", "loader", "workers", "compile", "checkpointing"),
    *("save_every", "log_every", "tracker", "timeout"),
)
PLACES = ("seed", "out", "base", "data.root", *(f"train.{name}" for name in (*MACHINE, "fused")))
WEIGHTS = (".safetensors", ".pth", ".pt", ".bin")


@dataclass(frozen=True)
class StepFolder:
    """A model with everything that the next step needs: what the method keeps, and the test."""

    path: Path

    @property
    def is_complete(self) -> bool:
        return (self.path / CONFUSION).exists()

    def model(self) -> SegmentationModel:
        return from_pretrained(self.path)

    def method_state(self) -> dict[str, Tensor]:
        """What the method kept at the end of the step; empty for methods that keep nothing."""
        path = self.path / STATE
        if path.exists():
            return read_tensors(path)
        config = self.path / CONFIG  # other libraries' models need not have one
        if config.is_file() and read_json(config).get("record", {}).get(KEPT):
            raise TissError(f"{path}: missing; copy the step's folder again, or remove it to repeat the step")
        return {}

    def confusion(self) -> Tensor:
        """The confusion matrix of the test after the step."""
        path = self.path / CONFUSION
        matrix = read_tensors(path).get("confusion", torch.empty(0))
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.is_floating_point():
            raise TissError(
                f"{path}: holds no confusion matrix; remove {self.path} and resume the run to repeat the step"
            )
        return matrix

    @contextlib.contextmanager
    def writing(
        self,
        model: SegmentationModel,
        state: Mapping[str, Tensor],
        matrix: Tensor | None,
        record: Mapping[str, Any],
    ) -> Iterator[Path]:
        """Writes the folder, whole or not at all; more files may be added to the folder that is yielded.

        `matrix` is the test's; None where the model was not tested.
        """
        with atomic_folder(self.path) as folder:
            model.save_pretrained(folder, {**record, KEPT: bool(state)})
            if matrix is not None:
                write_tensors(folder / CONFUSION, {"confusion": matrix.cpu()})
            if state:
                write_tensors(folder / STATE, dict(state))
            yield folder


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds one run."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    def step(self, index: int) -> StepFolder:
        return StepFolder(self.path / f"step-{index}")

    def finished_steps(self, steps: int) -> int:
        """How many steps, from the first on, are complete."""
        return next((index for index in range(steps) if not self.step(index).is_complete), steps)

    def check(self, config: RunConfig, resume: bool) -> None:
        """Refuses a folder that holds anything but this very run, waiting to be resumed."""
        found = {path.name for path in self.path.glob("[!.]*")}
        if found <= {"lock"}:
            return
        if "config.yaml" not in found:
            problem = "not empty and not a run folder: choose another"
        elif different := differences(read_config(self.path), config):
            problem = f"holds another run (different {', '.join(different)}): choose another folder"
        elif not resume:
            problem = "holds this run already: resume it, or choose another folder"
        else:
            return
        raise TissError(f"{self.path}: {problem}", setting="out")

    @contextlib.contextmanager
    def opened(self, config: RunConfig, world: World, resume: bool) -> Iterator[Journal]:
        """The folder, ready to be written into, until the block ends.

        Only the first process writes and holds the lock. A mistake found before anything was trained leaves no
        new folder behind.
        """
        self.check(config, resume)
        world.wait()  # every process has looked at the folder before the first one writes into it
        if not world.is_main:
            yield Journal(world, self.path)
            return
        fresh = not self.path.exists()
        make_folder(self.path)
        with Lock(self.path / "lock"):  # the folder is only ours to remove while we hold it
            try:
                recover(self.path)
                for path in self.path.glob("nonfinite-*.json"):  # of an attempt that this one replaces
                    path.unlink()
                if not (self.path / "config.yaml").exists():
                    write_text(self.path / "config.yaml", dump_config(config))
                yield Journal(world, self.path)
            except TissError:
                started = ("step-0", "checkpoint", "nonfinite-*", "try-*/checkpoint", f"try-*/{CONFUSION}")
                if fresh and not any(next(self.path.glob(name), None) for name in started):
                    shutil.rmtree(self.path, ignore_errors=True)
                raise

    def remove_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint, ignore_errors=True)


def read_config(folder: Path) -> RunConfig:
    """The configuration of a run folder."""
    path = folder / "config.yaml"
    if not path.exists():
        raise TissError(f"{folder} is not a run folder: it has no config.yaml")
    try:
        config = from_mapping(RunConfig, read_yaml(path))
        return replace(config, method=settings_from(config.method))
    except TissError as error:
        raise error if str(path) in str(error) else TissError(f"{path}: {error}") from error


def dump_config(config: RunConfig) -> str:
    return yaml.safe_dump(to_mapping(config), sort_keys=False, allow_unicode=True)


def run_name(config: RunConfig) -> str:
    """<data>-<task>-<setup>-<method>[-memory<images>]-seed<seed>, with only letters that any file system takes."""
    task = config.task if isinstance(config.task, str) else "groups"
    setup = f"{config.setup}-{config.order}" if str(config.order).startswith("random:") else config.setup
    memory = f"-memory{config.memory}" if config.memory else ""
    name = f"{config.data.name}-{task}-{setup}-{config.method.name}{memory}-seed{config.seed}"
    return "".join(letter if letter.isalnum() or letter in "-+._" else "_" for letter in name)


def describe_environment(world: World) -> dict[str, Any]:
    """Versions, commit, command and hardware of a run or a benchmark."""
    packages = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    kind = world.device.type
    machine = torch.cuda.get_device_name(world.device) if kind == "cuda" else f"{kind} ({platform.machine()})"
    return {
        "tiss": __version__,
        "commit": commit(),
        "command": ["tiss", *sys.argv[1:]],
        "python": platform.python_version(),
        "packages": packages,
        "platform": platform.platform(),
        "device": machine,
        "processes": world.size,
        "threads": torch.get_num_threads(),
        "precision": "bf16" if world.autocast_bf16 else "float32",
    }


def commit(source: Path = Path(__file__)) -> str | None:
    """The commit of the source tree, with '+' where it has changes; None for an installed package."""

    def git(*words: str) -> str:
        # without its optional locks, which would stay behind if this run is killed
        command = ["git", "--no-optional-locks", *words]
        done = subprocess.run(
            command, cwd=source.parent, capture_output=True, text=True, timeout=5, check=True
        )
        return done.stdout.strip()

    try:  # the first fails for a package in an environment that lies within somebody else's repository
        git("ls-files", "--error-unmatch", source.name)
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def all_settings(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings by dotted name, those that did not exist when it was made at their default.

    So a run from before an option was added and one from after it are still seeds of one another. What this version
    does not know, such as another's method, stays as it stands.
    """
    try:
        config = from_mapping(RunConfig, mapping)
        return flatten(to_mapping(replace(config, method=settings_from(config.method))))
    except TissError:
        return flatten(mapping)


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted names.

    >>> flatten({"train": {"lr": 1.0}, "seed": 3})
    {'train.lr': 1.0, 'seed': 3}
    """
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, name + ".")
        else:
            flat[name] = value
    return flat


def differences(one: RunConfig, two: RunConfig) -> list[str]:
    """Names of the settings in which two runs differ, those of the machine and the folder left out."""
    there, here = (flatten(to_mapping(config)) for config in (one, two))
    free = {"out", *(f"train.{name}" for name in MACHINE)}
    return sorted(k for k in (there.keys() | here.keys()) - free if there.get(k) != here.get(k))


def changed_settings(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a method that are not its defaults, by their own names; none of a method not known here.

    >>> changed_settings("tiss", {"method.tau": 0.1, "method.signed": False, "train.lr": 1.0})
    {'tau': 0.1}
    """
    try:
        usual = to_mapping(settings_from(method))
    except TissError:
        return {}
    found = {key: settings.get(f"method.{key}", value) for key, value in sorted(usual.items())}
    return {key: value for key, value in found.items() if value != usual[key]}


def what_was_done(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings that must agree for two runs to be seeds of one another."""
    kept = {key: value for key, value in sorted(settings.items()) if key not in PLACES}
    if "model.pretrained" in kept:
        kept["model.pretrained"] = last_name(kept["model.pretrained"])  # the file may have moved
    if kept.get("lists"):
        kept["lists"] = PurePath(kept["lists"]).name
    return kept


def variant_of(config: RunConfig) -> dict[str, Any]:
    """What sets results apart beside the setup: the order of classes, given lists, and a trial's fewer test images."""
    lists = config.lists and PurePath(config.lists).name
    return {"order": config.order, "lists": lists, "eval_images": config.eval.images}


def identity(config: Mapping[str, Any]) -> str:
    """All of a complete configuration that says what was done, the seed among it; equal for equal runs."""
    settings = all_settings(config)
    kept = what_was_done(settings)
    if METHODS.get(settings["method.name"]).joint:  # there are no later steps
        kept = {key: value for key, value in kept.items() if not key.startswith("train.step_")}
    return json.dumps({**kept, "seed": settings["seed"]}, sort_keys=True, default=list)


def last_name(text: str | None) -> str | None:
    """The last part of what is surely a path; a hub's name stays whole.

    >>> last_name("/data/VOCdevkit"), last_name("timm/vit_small"), last_name("w/vit.safetensors")
    ('VOCdevkit', 'timm/vit_small', 'vit.safetensors')
    """
    if text is None or not (text.startswith(("/", "~", ".")) or text.endswith(WEIGHTS)):
        return text
    return PurePath(text).name or text
