"""Whether and where a decoded split fits in memory: on the GPU, once for all processes here, or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import torch

from tiss.data.memory import MemoryStore, Progress, free_memory
from tiss.data.shared import SharedStore, Team, free_shared_memory
from tiss.data.source import FileSource
from tiss.errors import TissError

PROBE = 8  # samples decoded to estimate the size of all
RAM_SHARE = 0.4  # of the free memory, for `auto`
RAM_SHARE_ASKED = 0.9  # where the user asked for memory
GPU_SHARE = 0.6
GPU_SHARE_EACH = 0.2  # where each of several GPUs would hold its own copy
BYTES = 4  # a packed pixel
ADDRESSES = 4  # times the estimate: addresses of shared memory cost nothing until they are used


def open_store(
    files: FileSource,
    ids: Sequence[str],
    *,
    kind: Literal["auto", "memory"],
    device: torch.device,
    shared: dict[Any, Any],
    progress: Progress | None = None,
    together: bool = False,
) -> MemoryStore | None:
    """The store of `files` with `ids` decoded; None where `auto` finds that it does not fit.

    The GPU is tried first where the batches go there, then the machine's memory. The decision covers the
    whole split and is kept in `shared`, so that later steps do not decide anew. `together`: every process of
    the run asks for these very ids, so those of one machine share one copy.
    """
    everything = len(files.dataset.ids(files.split))
    key = ("memory", files.split, files.shorter, str(device), together)
    if key not in shared:
        shared[key] = _choose(files, ids, everything, kind, device, Team.here() if together else None)
    store: MemoryStore | None = shared[key]
    if store is None:
        if kind == "memory":
            name = f"{files.dataset.name} {files.split}"
            raise TissError(f"--train.loader memory: {name} does not fit in memory; use workers")
        return None
    store.load(ids, progress, capacity=int(store.mean_pixels() * everything * 1.02) + 1)
    return store


def _choose(
    files: FileSource, ids: Sequence[str], everything: int, kind: str, device: torch.device, team: Team | None
) -> MemoryStore | None:
    probe = MemoryStore(files)
    probe.load(list(ids)[:: max(1, len(ids) // PROBE)][:PROBE])
    pixels = probe.mean_pixels() * everything
    needed = pixels * BYTES
    if _fits_on_gpu(needed, device, team):
        probe.move(device)
        return probe
    allowed = (RAM_SHARE if kind == "auto" else RAM_SHARE_ASKED) * free_memory()
    if team is not None and team.share(needed <= min(allowed, RAM_SHARE_ASKED * free_shared_memory())):
        return SharedStore(files, team, int(pixels * ADDRESSES) + 1)
    processes = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return probe if needed <= allowed / processes else None


def _fits_on_gpu(needed: float, device: torch.device, team: Team | None) -> bool:
    """Whether every process here has the room; where they could share one copy, only if it hardly shows."""
    share = GPU_SHARE if team is None else GPU_SHARE_EACH
    fits = device.type == "cuda" and needed <= share * torch.cuda.mem_get_info(device)[0]
    return fits if team is None else team.all_say(fits)
