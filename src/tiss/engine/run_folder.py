"""A run folder: its name, its configuration, and who may write into it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from tiss.config import RunConfig, from_mapping, to_mapping
from tiss.errors import TissError
from tiss.files.atomic import make_folder
from tiss.files.lock import Lease
from tiss.files.reading import read_yaml
from tiss.methods.base import settings_from

# settings that may differ between the parts of one run: they change where and how fast, not what comes out
MACHINE = (
    *("device", "loader", "workers", "compile", "checkpointing", "shard"),
    *("save_every", "log_every", "tracker"),
)


def read_config(folder: Path) -> RunConfig:
    """The configuration of a run folder."""
    path = folder / "config.yaml"
    if not path.exists():
        raise TissError(f"{folder} is no run folder: it has no config.yaml")
    config = from_mapping(RunConfig, read_yaml(path))
    return replace(config, method=settings_from(config.method))


def dump_config(config: RunConfig) -> str:
    return yaml.safe_dump(to_mapping(config), sort_keys=False, allow_unicode=True)


def default_folder(config: RunConfig) -> Path:
    return Path("runs") / run_name(config)


def run_name(config: RunConfig) -> str:
    """<data>-<task>-<setup>-<method>-seed<seed>, with only letters that any file system takes."""
    task = config.task if isinstance(config.task, str) else "groups"
    name = f"{config.data.name}-{task}-{config.setup}-{config.method.name}-seed{config.seed}"
    return "".join(letter if letter.isalnum() or letter in "-+._" else "_" for letter in name)


def check_folder(folder: Path, config: RunConfig, resume: bool) -> None:
    """Refuses a folder that holds something else than this very run, waiting to be resumed."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / "config.yaml").exists():
        if {path.name for path in folder.iterdir() if not path.name.startswith(".")} <= {"lock"}:
            return
        raise TissError(f"--out {folder} is not empty and no run folder: choose another")
    there, here = to_mapping(read_config(folder)), to_mapping(config)
    different = _differences(there, here)
    if different:
        raise TissError(
            f"--out {folder} holds another run (other {', '.join(different)}): choose another folder"
        )
    if not resume:
        raise TissError(
            f"--out {folder} holds this run already: add --resume to go on, or choose another folder"
        )


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    found = []
    for key in sorted(set(there) | set(here)):
        one, two = there.get(key), here.get(key)
        if key == "out":
            continue
        if key == "train":
            one, two = ({k: v for k, v in (part or {}).items() if k not in MACHINE} for part in (one, two))
        if isinstance(one, dict) and isinstance(two, dict):
            found += [f"{key}.{k}" for k in sorted(set(one) | set(two)) if one.get(k) != two.get(k)]
        elif one != two:
            found.append(key)
    return found


@contextlib.contextmanager
def owned(folder: Path, is_main: bool) -> Iterator[Lease | None]:
    """Holds the run folder against a second run; only the first process takes the lease.

    A mistake that shows before anything was learnt leaves no folder behind.
    """
    if not is_main:
        yield None
        return
    fresh = not folder.exists()
    make_folder(folder)
    with Lease(folder / "lock") as lease:  # the folder is only ours to remove while we hold it
        try:
            yield lease
        except TissError:
            if fresh and not any(
                next(folder.glob(name), None) for name in ("step-0", "checkpoint", "nonfinite-*")
            ):
                shutil.rmtree(folder, ignore_errors=True)
            raise
