"""Where a batch's pixels come from: files that are read when asked for, or the decoded split in memory."""

import mmap
import os
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor

from tiss.data.augment import Place, Size, one_thread, pack, shrink
from tiss.data.base import Dataset, Sample, read_checked, stop_at
from tiss.data.index import parallel_map, processors
from tiss.errors import TissError

RAM_SHARE = {"auto": 0.4, "memory": 0.9}  # of the free memory; the second where the user asked for memory
GPU_SHARE = 0.6
BYTES = 4  # a packed pixel
CONTAINER = Path("/sys/fs/cgroup")


@dataclass
class FileSource:
    """Reads samples from the data set when they are asked for.

    Images whose shorter side is longer than `shorter` are resized to it as they are read.
    """

    dataset: Dataset
    split: str
    shorter: int | None = None

    def find(self, id: str) -> tuple[Tensor, Size]:
        """Packed pixels of one sample, with its height and width; a broken one raises a TissError."""
        with one_thread():
            sample = limit(read_checked(self.dataset, self.split, id), self.shorter)
            height, width = sample.label.shape
            return pack(sample), (height, width)

    def collect(self, ids: Sequence[str]) -> tuple[Tensor, list[Place]]:
        """A flat buffer of packed pixels, and where each sample is in it."""
        found = [self.find(id) for id in ids]
        starts = accumulate((len(pixels) for pixels, _ in found), initial=0)
        places = [(start, size) for start, (_, size) in zip(starts, found, strict=False)]
        return torch.cat([pixels for pixels, _ in found]), places

    def sizes(self) -> dict[str, Size]:
        """Height and width of every sample of the split as `find` gives it; broken ones are not there."""
        return {id: limited(size, self.shorter) for id, size in self.dataset.sizes(self.split).items()}


class MemoryStore:
    """Samples of a split as packed pixels in one flat buffer, on the CPU or the GPU; each is decoded once."""

    def __init__(self, sizes: dict[str, Size], device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.sizes = sizes
        pixels = _pixels(sizes, sizes)
        # on a CPU only addresses are taken here: memory is used as samples come
        on_cpu = self.device.type == "cpu"
        self.buffer = _shared(pixels) if on_cpu else torch.empty(pixels, dtype=torch.int32, device=device)
        self.used = 0  # pixels
        self.places: dict[str, Place] = {}

    def missing(self, ids: Sequence[str]) -> list[str]:
        return [id for id in dict.fromkeys(ids) if id not in self.places]

    def load(self, files: FileSource, ids: Sequence[str]) -> None:
        """Decodes those of `ids` that are not here yet, by processes that write into memory they share."""
        missing = self.missing(ids)
        on_cpu = self.device.type == "cpu"
        start = self.used
        target = self.buffer[start:] if on_cpu else _shared(_pixels(self.sizes, missing))
        ends = list(accumulate((_pixels(self.sizes, [id]) for id in missing), initial=start))
        jobs = list(zip(missing, ends, strict=False))

        def decode(job: tuple[str, int]) -> str | None:
            id, offset = job
            try:
                pixels, size = files.find(id)
            except TissError as error:
                return str(error)
            if size != self.sizes.get(id):
                return f"{files.dataset.name} {files.split} {id}: changed while it was read; start again"
            target[offset - start : offset - start + len(pixels)] = pixels
            return None

        with one_thread():
            problems = parallel_map(decode, jobs, "Reading images", min(16, cores()))
            stop_at([problem for problem in problems if problem is not None])
        self.used = ends[-1]
        if not on_cpu:
            self.buffer[start : self.used].copy_(target)
        self.places.update((id, (offset, self.sizes[id])) for id, offset in jobs)

    def collect(self, ids: Sequence[str]) -> tuple[Tensor, list[Place]]:
        return self.buffer, [self.places[id] for id in ids]


# All loaders of one data set object share what is decoded: steps of a run, and runs of a grid in one process.
_stores: WeakKeyDictionary[Dataset, dict[Any, MemoryStore]] = WeakKeyDictionary()


def open_store(
    files: FileSource,
    ids: Sequence[str],
    kind: Literal["auto", "memory"],
    device: torch.device,
    every: Set[str] = frozenset(),
) -> MemoryStore | None:
    """The store of `files` with `ids` decoded; None where `auto` finds that they do not fit.

    It has room for `every` id that may follow (`ids` if empty), and is on the GPU where batches go there and all of
    that fits, else in the machine's memory. Where ids are asked for that it has no room for, it is made anew.
    """
    stores = _stores.setdefault(files.dataset, {})
    key = (files.split, files.shorter, device)
    store = stores.get(key)
    if store is not None and not store.sizes.keys() >= set(ids):
        every, store = {*every, *store.sizes}, None
        del stores[key]
    sizes = files.sizes() if store is None else store.sizes
    needed = BYTES * _pixels(sizes, ids if store is None else store.missing(ids))
    free = free_memory() / _ranks_here()
    fits = needed <= RAM_SHARE[kind] * free
    try:
        if fits and store is None:
            room = {*every, *ids}
            sizes = {id: size for id, size in sizes.items() if id in room}
            whole = BYTES * _pixels(sizes, sizes)
            on_gpu = device.type == "cuda" and whole <= GPU_SHARE * torch.cuda.mem_get_info(device)[0]
            store = stores[key] = MemoryStore(sizes, device if on_gpu else "cpu")
    except (OSError, RuntimeError):  # a system that promises no more memory than it has
        fits = False
    if store is not None and fits:
        store.load(files, ids)
        return store
    if kind == "auto":
        return None
    raise TissError(
        f"memory: {files.dataset.name} {files.split} needs {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB "
        "are free for it; use workers",
        setting="train.loader",
    )


def _pixels(sizes: dict[str, Size], ids: Iterable[str]) -> int:
    return sum(height * width for height, width in (sizes.get(id, (0, 0)) for id in ids))


def _shared(pixels: int) -> Tensor:
    """Zeros that forked processes write into for each other to see."""
    return torch.frombuffer(mmap.mmap(-1, BYTES * max(1, pixels)), dtype=torch.int32)[:pixels]


def _ranks_here() -> int:
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def cores() -> int:
    """Processors for this process: those that it may use, divided among the ranks on this machine."""
    return max(1, processors() // _ranks_here())


def free_memory() -> float:
    """Bytes that this process may still take: the machine's, or its container's where that is less."""
    free = float(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        most, used = ((CONTAINER / f"memory.{name}").read_text() for name in ("max", "current"))
        free = min(free, float(int(most) - int(used)))
    return max(0.0, free)


def limited(size: Size, shorter: int | None) -> Size:
    """The size of a sample whose shorter side may be at most `shorter`."""
    if shorter is None or min(size) <= shorter:
        return size
    to = shrink(*size, shorter)
    return to.height, to.width


def limit(sample: Sample, shorter: int | None) -> Sample:
    """A sample whose shorter side is at most `shorter`: image by area-weighted bilinear, label by nearest.

    A crop's own bilinear gather reads four pixels, which is right down to half the size; images far larger
    than the crop are shrunk here once, so that they neither shimmer nor fill the memory.
    """
    height, width = sample.label.shape
    size = limited((height, width), shorter)
    if size == (height, width):
        return sample
    image = sample.image[None].contiguous()
    image = F.interpolate(image, size, mode="bilinear", align_corners=False, antialias=True)[0]
    label = F.interpolate(sample.label[None, None], size, mode="nearest-exact")[0, 0]
    return Sample(image, label, sample.id)
