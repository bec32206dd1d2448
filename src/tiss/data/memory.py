"""The decoded data set in memory, as packed pixels in one flat buffer, on the CPU or the GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from tiss.data.source import Collected, FileSource, OnBroken, Where
from tiss.data.threads import cores, one_thread
from tiss.errors import TissError
from tiss.files.memory import CONTAINER, container_limit

Progress = Callable[[int, int], None]  # samples done, samples in all


class MemoryStore:
    """Every sample of a split that was asked for, decoded once; all steps of a run share it."""

    def __init__(self, files: FileSource, device: torch.device | str = "cpu") -> None:
        self.files = files
        self.device = torch.device(device)
        self.buffer = torch.empty(0, dtype=torch.int32, device=self.device)
        self.threads = cores()
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
        with one_thread(), ThreadPoolExecutor(max_workers=min(16, self.threads)) as threads:
            for start in range(0, len(missing), block):
                part = missing[start : start + block]
                for id, decoded in zip(part, threads.map(self._decode, part), strict=True):
                    if isinstance(decoded, str):
                        self.broken[id] = decoded
                    else:
                        self._add(id, *decoded)
                if progress is not None:
                    progress(min(start + block, len(missing)), len(missing))

    def collect(self, ids: Sequence[str], on_broken: OnBroken) -> Collected:
        found: list[str] = []
        for place, id in enumerate(ids):
            wanted: str | None = id
            while wanted is not None and wanted not in self.places:
                wanted = on_broken(place, self.broken[wanted])
            if wanted is not None:
                found.append(wanted)
        return Collected(self.buffer, [self.places[id] for id in found], found)

    def move(self, device: torch.device) -> None:
        """Brings what is here to another device."""
        self.device = device
        self.buffer = self.buffer.to(device)

    def mean_pixels(self) -> float:
        """Mean size of the pictures that are here."""
        return self.used / max(1, len(self.places))

    def _decode(self, id: str) -> tuple[Tensor, tuple[int, int]] | str:
        try:
            return self.files.read(id)
        except TissError as error:
            return str(error)

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


def free_memory() -> float:
    """Bytes that this process may still take: the machine's, or its container's where that is less."""
    free = float("inf")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(lines.get("MemAvailable", lines["MemFree"]).split()[0]) * 1024.0
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2.0
    limit, used = container_limit(), CONTAINER / "memory.current"
    if limit is not None and used.exists():
        free = min(free, limit - float(used.read_text()))
    return max(0.0, free)
