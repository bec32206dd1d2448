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


def commit() -> str | None:
    """The commit of the source tree, with '+' where it has changes; None for an installed package."""
    folder = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=5, check=True
        )
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
