"""What a run writes and who may write it: the run folder, its step folders, its journal.

config.yaml       every setting, resolved          step-K/            a model folder, and beside the model
environment.json  versions, commit, machine          method.safetensors     what the method keeps
metrics.jsonl     losses and rates                   confusion.safetensors  the test
timing.json       seconds per step                 checkpoint/         the step in progress
results.json      scores, from the step folders    lock                held by the process that writes
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from tiss import __version__
from tiss.config import RunConfig, from_mapping, to_mapping
from tiss.engine.device import World
from tiss.errors import TissError
from tiss.files import (
    Lock,
    append_line,
    atomic_folder,
    make_folder,
    read_tensors,
    read_yaml,
    recover,
    truncate_to,
    write_tensors,
    write_text,
)
from tiss.methods.base import settings_from
from tiss.models import SegmentationModel, from_pretrained

# settings that may differ between the parts of one run: they change where and how fast, not what comes out
MACHINE = (
    *("device", "loader", "workers", "compile", "checkpointing", "shard"),
    *("save_every", "log_every", "tracker", "timeout"),
)
PACKAGES = ("torch", "numpy", "pillow", "safetensors", "accelerate", "timm", "transformers", "triton")
STATE, CONFUSION = "method.safetensors", "confusion.safetensors"


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
        return read_tensors(path) if path.exists() else {}

    def confusion(self) -> Tensor:
        """The confusion matrix of the test after the step."""
        path = self.path / CONFUSION
        matrix = read_tensors(path).get("confusion")
        if (
            matrix is None
            or matrix.ndim != 2
            or matrix.shape[0] != matrix.shape[1]
            or matrix.is_floating_point()
        ):
            raise TissError(
                f"{path}: holds no confusion matrix; remove {self.path} and resume the run to repeat the step"
            )
        return matrix

    @contextlib.contextmanager
    def writing(
        self, model: SegmentationModel, state: Mapping[str, Tensor], matrix: Tensor, record: Mapping[str, Any]
    ) -> Iterator[Path]:
        """Writes the folder, whole or not at all; more files may be added to the folder that is yielded."""
        with atomic_folder(self.path) as folder:
            model.save_pretrained(folder, record)
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

    def config(self) -> RunConfig:
        path = self.path / "config.yaml"
        if not path.exists():
            raise TissError(f"{self.path} is not a run folder: it has no config.yaml")
        config = from_mapping(RunConfig, read_yaml(path))
        return replace(config, method=settings_from(config.method))

    def check(self, config: RunConfig, resume: bool) -> None:
        """Refuses a folder that holds anything but this very run, waiting to be resumed."""
        if not self.path.exists() or not any(self.path.iterdir()):
            return
        if not (self.path / "config.yaml").exists():
            if {path.name for path in self.path.iterdir() if not path.name.startswith(".")} <= {"lock"}:
                return
            raise TissError(f"{self.path}: not empty and not a run folder: choose another", setting="out")
        different = differences(to_mapping(self.config()), to_mapping(config))
        if different:
            raise TissError(
                f"{self.path}: holds another run (different {', '.join(different)}): choose another folder",
                setting="out",
            )
        if not resume:
            raise TissError(
                f"{self.path}: holds this run already: resume it (--resume), or choose another folder",
                setting="out",
            )

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
                started = ("step-0", "checkpoint", "nonfinite-*")
                if fresh and not any(next(self.path.glob(name), None) for name in started):
                    shutil.rmtree(self.path, ignore_errors=True)
                raise

    def remove_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint, ignore_errors=True)


class Journal:
    """Where a training step writes its metrics and its checkpoint; without a folder, nowhere."""

    def __init__(self, world: World, folder: Path | None = None) -> None:
        self.world, self.folder = world, folder
        self.checkpoint = folder / "checkpoint" if folder else None
        self.metrics = folder / "metrics.jsonl" if folder else None

    def log(self, line: dict[str, Any]) -> None:
        """One line of metrics."""
        if self.metrics is None:
            return
        if self.world.is_main:
            append_line(self.metrics, json.dumps({**line, "time": round(time.time(), 3)}))
        if self.world.accelerator.log_with:
            part = f"step-{line['step']}"  # iterations start at 0 in every step, so each has its own curves
            values = {f"{part}/loss/{name}": value for name, value in line["losses"].items()}
            values |= {f"{part}/{name}": line[name] for name in ("loss", "images_per_second")}
            self.world.accelerator.log(values, step=line["iteration"])

    def size(self) -> int:
        """Bytes of metrics written so far."""
        return self.metrics.stat().st_size if self.metrics and self.metrics.exists() else 0

    def rewind(self, size: int) -> None:
        """Drops metrics written after the checkpoint that a run resumes from."""
        if self.metrics and self.world.is_main and self.size() > size:
            truncate_to(self.metrics, size)

    def restart(self, step: int) -> None:
        """Drops metrics of `step`: an attempt at it was stopped before its first checkpoint."""
        if self.metrics is None or not self.world.is_main or not self.metrics.exists():
            return
        kept = 0
        with open(self.metrics, "rb") as lines:
            for line in lines:
                try:
                    earlier = json.loads(line)["step"] < step
                except (ValueError, KeyError, TypeError):  # a line that was cut off
                    break
                if not earlier:
                    break
                kept += len(line)
        truncate_to(self.metrics, kept)


def read_config(folder: Path) -> RunConfig:
    """The configuration of a run folder."""
    return RunFolder(folder).config()


def dump_config(config: RunConfig) -> str:
    return yaml.safe_dump(to_mapping(config), sort_keys=False, allow_unicode=True)


def run_name(config: RunConfig) -> str:
    """<data>-<task>-<setup>-<method>-seed<seed>, with only letters that any file system takes."""
    task = config.task if isinstance(config.task, str) else "groups"
    name = f"{config.data.name}-{task}-{config.setup}-{config.method.name}-seed{config.seed}"
    return "".join(letter if letter.isalnum() or letter in "-+._" else "_" for letter in name)


def differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Names of the settings in which two configurations differ, those of the machine left out."""
    found = []
    for key in sorted((set(there) | set(here)) - {"out"}):
        one, two = there.get(key), here.get(key)
        if key == "train":
            one, two = ({k: v for k, v in (part or {}).items() if k not in MACHINE} for part in (one, two))
        if isinstance(one, dict) and isinstance(two, dict):
            found += [f"{key}.{k}" for k in sorted(set(one) | set(two)) if one.get(k) != two.get(k)]
        elif one != two:
            found.append(key)
    return found


def describe_environment(world: World) -> dict[str, Any]:
    """Versions, commit, command and hardware of a run or a benchmark."""
    return {
        "tiss": __version__,
        "commit": commit(),
        "command": ["tiss", *sys.argv[1:]],
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(world.device)
        if world.device.type == "cuda"
        else f"{world.device.type} ({platform.machine()})",
        "processes": world.size,
        "threads": torch.get_num_threads(),
        "precision": "bf16" if world.autocast_bf16 else "float32",
    }


def commit(source: Path = Path(__file__)) -> str | None:
    """The commit of the source tree, with '+' where it has changes; None for an installed package."""
    source = source.resolve()
    try:
        # fails for a package in an environment that lies within somebody else's repository
        _git(source, "ls-files", "--error-unmatch", source.name)
        found = _git(source, "rev-parse", "HEAD")
        changed = _git(source, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return found + ("+" if changed else "")


def _git(source: Path, *arguments: str) -> str:
    """What git says beside `source`; without its optional locks, which would stay behind if this run is killed."""
    command = ["git", "--no-optional-locks", *arguments]
    done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, timeout=5, check=True)
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
