"""The decoded data set in memory, as packed pixels in one flat buffer, on the CPU or the GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from tiss.data.augment import pack
from tiss.data.base import Dataset
from tiss.data.check import read_checked
from tiss.errors import TissError

Progress = Callable[[int, int], None]  # samples done, samples in all
Where = tuple[int, tuple[int, int]]  # offset in the buffer; height and width

PROBE = 8  # samples decoded to estimate the size of all
RAM_SHARE = 0.4  # of the free memory, for `auto`
GPU_SHARE = 0.6
BYTES = 4  # a packed pixel


class FileSource:
    """Reads samples from the data set when they are asked for: what a worker process holds."""

    def __init__(self, dataset: Dataset, split: str) -> None:
        self.dataset = dataset
        self.split = split

    def collect(self, ids: Sequence[str], on_broken: Callable[[int, str], str | None]) -> Collected:
        """Reads `ids`; a broken one is replaced by what `on_broken(place, message)` names, or left out."""
        pixels: list[Tensor] = []
        places: list[Where] = []
        found: list[str] = []
        offset = 0
        for place, id in enumerate(ids):
            wanted: str | None = id
            while wanted is not None:
                try:
                    sample = read_checked(self.dataset, self.split, wanted)
                except TissError as error:
                    wanted = on_broken(place, str(error))
                    continue
                height, width = sample.label.shape
                pixels.append(pack(sample))
                places.append((offset, (height, width)))
                found.append(wanted)
                offset += height * width
                break
        buffer = torch.cat(pixels) if pixels else torch.empty(0, dtype=torch.int32)
        return Collected(buffer, places, found)


class Collected:
    """Pictures in a flat buffer: `ids[i]` lies at `places[i]`."""

    def __init__(self, buffer: Tensor, places: list[Where], ids: list[str]) -> None:
        self.buffer = buffer
        self.offsets = [offset for offset, _ in places]
        self.sizes = [size for _, size in places]
        self.ids = ids


class MemoryStore:
    """Every sample of a split that was asked for, decoded once; all steps of a run share it."""

    def __init__(self, dataset: Dataset, split: str, device: torch.device | str = "cpu") -> None:
        self.dataset = dataset
        self.split = split
        self.device = torch.device(device)
        self.buffer = torch.empty(0, dtype=torch.int32, device=self.device)
        self.used = 0  # pixels
        self.places: dict[str, Where] = {}
        self.broken: dict[str, str] = {}  # id → what is wrong with it

    def load(self, ids: Sequence[str], progress: Progress | None = None, capacity: int = 0) -> None:
        """Decodes those of `ids` that are not here yet, with threads; `capacity` is room to make at once."""
        missing = [id for id in dict.fromkeys(ids) if id not in self.places and id not in self.broken]
        if not missing:
            return
        self._reserve(capacity)
        block = 256  # bounds what waits between the threads and the buffer
        with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as threads:
            for start in range(0, len(missing), block):
                part = missing[start : start + block]
                for id, decoded in zip(part, threads.map(self._decode, part), strict=True):
                    if isinstance(decoded, str):
                        self.broken[id] = decoded
                    else:
                        self._add(id, *decoded)
                if progress is not None:
                    progress(min(start + block, len(missing)), len(missing))

    def collect(self, ids: Sequence[str], on_broken: Callable[[int, str], str | None]) -> Collected:
        """Where `ids` lie; a broken one is replaced by what `on_broken(place, message)` says, or left out."""
        found: list[str] = []
        for place, id in enumerate(ids):
            wanted: str | None = id
            while wanted is not None and wanted not in self.places:
                wanted = on_broken(place, self.broken[wanted])
            if wanted is not None:
                found.append(wanted)
        return Collected(self.buffer, [self.places[id] for id in found], found)

    def mean_pixels(self) -> float:
        """Mean size of the pictures that are here."""
        return self.used / max(1, len(self.places))

    def _decode(self, id: str) -> tuple[Tensor, tuple[int, int]] | str:
        try:
            sample = read_checked(self.dataset, self.split, id)
        except TissError as error:
            return str(error)
        height, width = sample.label.shape
        return pack(sample), (height, width)

    def _add(self, id: str, pixels: Tensor, size: tuple[int, int]) -> None:
        if self.used + len(pixels) > len(self.buffer):
            self._reserve(max(self.used + len(pixels), len(self.buffer) * 5 // 4))
        self.buffer[self.used : self.used + len(pixels)] = pixels
        self.places[id] = (self.used, size)
        self.used += len(pixels)

    def _reserve(self, pixels: int) -> None:
        if pixels > len(self.buffer):
            larger = torch.empty(pixels, dtype=torch.int32, device=self.device)
            larger[: self.used] = self.buffer[: self.used]
            self.buffer = larger


def open_store(
    dataset: Dataset,
    split: str,
    ids: Sequence[str],
    *,
    kind: Literal["auto", "memory"],
    device: torch.device,
    shared: dict[object, object],
    progress: Progress | None = None,
) -> MemoryStore | None:
    """The store of (data set, split) with `ids` decoded; None where `auto` finds that it does not fit.

    The GPU is tried first where the batches go there, then the machine's memory. The decision covers the
    whole split and is kept in `shared`, so that later steps do not decide anew.
    """
    key = ("memory", split, str(device))
    if key not in shared:
        shared[key] = _choose(dataset, split, ids, kind, device)
    chosen = shared[key]
    if not isinstance(chosen, MemoryStore):
        if kind == "memory":
            raise TissError(
                f"--train.loader memory: {dataset.name} {split} does not fit in memory; use workers"
            )
        return None
    everything = len(dataset.ids(split))
    chosen.load(ids, progress, capacity=int(chosen.mean_pixels() * everything * 1.02) + 1)
    return chosen


def _choose(
    dataset: Dataset, split: str, ids: Sequence[str], kind: str, device: torch.device
) -> MemoryStore | None:
    probe = MemoryStore(dataset, split)
    spread = list(ids)[:: max(1, len(ids) // PROBE)][:PROBE]
    probe.load(spread)
    needed = probe.mean_pixels() * len(dataset.ids(split)) * BYTES
    if device.type == "cuda" and needed <= GPU_SHARE * torch.cuda.mem_get_info(device)[0]:
        store = MemoryStore(dataset, split, device)
        store.places, store.broken, store.used = probe.places, probe.broken, probe.used
        store.buffer = probe.buffer.to(device)
        return store
    share = RAM_SHARE if kind == "auto" else 0.9
    processes = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return probe if needed <= share * free_memory() / processes else None


def free_memory() -> float:
    """Bytes that this process may still take: the machine's, or its container's where that is less."""
    free = float("inf")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(lines.get("MemAvailable", lines["MemFree"]).split()[0]) * 1024.0
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2.0
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
        free = min(free, float(limit.read_text()) - float(used.read_text()))
    return max(0.0, free)
