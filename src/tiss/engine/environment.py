"""What a run was made with: version, commit, machine. Written once into the run folder."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tiss import __version__
from tiss.engine.world import World

PACKAGES = ("torch", "numpy", "pillow", "safetensors", "accelerate", "timm", "transformers", "triton")


def describe_environment(world: World) -> dict[str, Any]:
    """Versions, commit, command and hardware."""
    return {
        "tiss": __version__,
        "commit": commit(),
        "command": ["tiss", *sys.argv[1:]],
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "platform": platform.platform(),
        "device": device_name(world.device),
        "processes": world.size,
        "threads": torch.get_num_threads(),
        "precision": "bf16" if world.autocast_bf16 else "float32",
    }


def device_name(device: torch.device) -> str:
    return (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{device.type} ({platform.machine()})"
    )


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
