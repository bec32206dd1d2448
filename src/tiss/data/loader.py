"""Loaders: batches of a split, from worker processes or from memory, the same ones either way.

What a batch holds is decided by a plan, a pure function of (seed, step, epoch, position) in whichever process it
runs; where the pixels come from is a source. A rank makes only its own share of each global batch.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from tiss.data.augment import AugmentSettings, Place, centre, crop_batch, draw, shrink
from tiss.data.base import Batch, Dataset
from tiss.data.store import FileSource, MemoryStore, cores, open_store
from tiss.errors import TissError
from tiss.randomness import epoch_order

AHEAD = 4  # batches that threads make before they are asked for
# fork: a user's script then needs no __main__ guard, and data made in memory is not copied
START_METHOD = "fork" if sys.platform == "linux" else "spawn"

_order = lru_cache(maxsize=2)(epoch_order)  # of an epoch, for all its batches


class SplitLike(Protocol):
    """What a loader needs of a scenario's split."""

    @property
    def dataset(self) -> Dataset: ...
    @property
    def split(self) -> str: ...
    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def table(self) -> np.ndarray: ...
    @property
    def tables(self) -> Mapping[str, np.ndarray]: ...


@dataclass
class RawBatch:
    """A batch on its way: labels are still one byte per pixel, already in channels; or why there is none."""

    image: Tensor = field(default_factory=lambda: torch.empty(0, 3, 0, 0, dtype=torch.uint8))
    label: Tensor = field(default_factory=lambda: torch.empty(0, 0, 0, dtype=torch.uint8))
    ids: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    error: str | None = None

    def pin_memory(self) -> RawBatch:
        return RawBatch(self.image.pin_memory(), self.label.pin_memory(), self.ids, self.skipped, self.error)


@dataclass
class _Plan(torch.utils.data.Dataset[RawBatch]):
    """`plan[request]` is a finished batch: it holds all that a worker process needs. The loader sets the last four."""

    may_shrink: ClassVar[bool]  # whether a batch without its broken samples is a batch

    ids: tuple[str, ...]
    batch: int
    skip: bool = field(init=False)  # broken samples
    source: FileSource | MemoryStore = field(init=False)
    table: Tensor = field(init=False)  # label value → channel
    tables: dict[str, Tensor] = field(init=False)  # of samples that have one of their own

    def choices(self, request: Any) -> Iterable[Iterable[str]]:
        """For each place in the batch, the id of its sample, then of those that replace a broken one."""
        raise NotImplementedError

    def cut(self, request: Any, table: Tensor, buffer: Tensor, places: list[Place]) -> tuple[Tensor, Tensor]:
        """Images and labels of the samples found, from a buffer of packed pixels."""
        raise NotImplementedError

    def table_of(self, ids: Sequence[str]) -> Tensor:
        """The table of all samples, or one for each where some have their own."""
        own = self.tables
        return torch.stack([own.get(id, self.table) for id in ids]) if own else self.table

    def __getitem__(self, request: Any) -> RawBatch:
        ids: list[str] = []
        found: list[Any] = []
        skipped: list[str] = []
        try:
            for choices in self.choices(request):
                for id in choices:
                    try:
                        found.append(self.source.find(id))
                        ids.append(id)
                        break
                    except TissError as error:
                        if not self.skip:
                            raise
                        skipped.append(id)
                        last = error
                else:
                    if not self.may_shrink:
                        raise TissError(f"no training image of this step can be read; the last: {last}")
            if not ids:
                return RawBatch(skipped=skipped)
            made = self.cut(request, self.table_of(ids), *self.source.collect(found))
            return RawBatch(*made, ids, skipped)
        except TissError as error:
            return RawBatch(error=str(error))


@dataclass
class _TrainPlan(_Plan):
    """Training batches. A request is (epoch, iteration, part)."""

    may_shrink = False

    settings: AugmentSettings
    seed: int
    step: int
    rank: int
    world: int
    accumulate: int

    def positions(self, request: tuple[int, int, int]) -> range:
        _, iteration, part = request
        size = self.batch // (self.world * self.accumulate)
        first = iteration * self.batch + (part * self.world + self.rank) * size
        return range(first, first + size)

    def choices(self, request: tuple[int, int, int]) -> Iterable[Iterable[str]]:
        count = len(self.ids)
        order = _order(self.seed, self.step, request[0], count)
        for first in self.positions(request):
            yield (self.ids[order[position % count]] for position in range(first, first + count))

    def cut(
        self, request: tuple[int, int, int], table: Tensor, buffer: Tensor, places: list[Place]
    ) -> tuple[Tensor, Tensor]:
        augmentations = [
            draw(self.settings, *size, (self.seed, "augment", self.step, request[0], position))
            for position, (_, size) in zip(self.positions(request), places, strict=True)
        ]
        crop = (self.settings.crop, self.settings.crop)
        return crop_batch(buffer, places, augmentations, crop, table)


@dataclass
class _TestPlan(_Plan):
    """Test batches in the order of the ids. A request is the batch's number."""

    may_shrink = True

    size: int
    mode: Literal["crop", "slide"]

    def choices(self, request: int) -> Iterable[Iterable[str]]:
        return [(id,) for id in self.ids[request * self.batch : (request + 1) * self.batch]]

    def cut(self, request: int, table: Tensor, buffer: Tensor, places: list[Place]) -> tuple[Tensor, Tensor]:
        if self.mode == "crop":
            cuts = [centre(*size, self.size) for _, size in places]
            return crop_batch(buffer, places, cuts, (self.size, self.size), table)
        # the whole image with its shorter side resized, and the label as it is in the file
        offset, (height, width) = places[0]
        pixels = buffer[offset : offset + height * width]
        planes = pixels.view(torch.uint8).view(height, width, 4).permute(2, 0, 1)
        label = table.index_select(0, planes[3].flatten().int()).view(1, height, width)
        to = shrink(height, width, self.size)
        image = planes[None, :3].float().contiguous()
        image = F.interpolate(image, (to.height, to.width), mode="bilinear", antialias=True)
        return image.round().clamp(0, 255).to(torch.uint8), label


class _Loader:
    """Runs a plan's requests through worker processes or over the store in memory.

    Args:
        split: the samples; `plan.ids` are this loader's part of them.
        shorter: the shorter side that images need at most.
        kind: "auto" takes memory where the samples fit.
        workers: processes; None for as many as suit the machine.
        device: where batches go.
        on_error: "skip" leaves broken samples out.
    """

    def __init__(
        self,
        split: SplitLike,
        plan: Any,
        shorter: int | None,
        *,
        kind: Literal["auto", "workers", "memory"] = "auto",
        workers: int | None = None,
        device: torch.device | str = "cpu",
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        self.device = torch.device(device)
        self.skipped: list[str] = []  # ids of samples that could not be read, each once
        self._requests: list[Any] = []
        self._processes: DataLoader[Any] | None = None
        self._running: Generator[Batch, None, None] | None = None
        files = FileSource(split.dataset, split.split, shorter)
        store = None if kind == "workers" else open_store(files, plan.ids, kind, self.device)
        self._plan = plan
        self._plan.skip = on_error == "skip"
        self._plan.source = store or files
        where = "cpu" if store is None else store.device
        self._plan.table = torch.from_numpy(split.table).to(where)
        self._plan.tables = {id: torch.from_numpy(table).to(where) for id, table in split.tables.items()}
        self.kind = "workers" if store is None else "memory"
        if store is None:
            self._processes = self._start_processes(workers)

    def _start_processes(self, workers: int | None) -> DataLoader[Any]:
        on_gpu = self.device.type == "cuda"
        if workers is None:  # all cores of this rank with a GPU, half of them without
            workers = min(16, cores()) if on_gpu else min(4, cores() // 2)
        return DataLoader(
            self._plan,
            batch_size=None,
            sampler=self._requests,  # filled again for each epoch; the processes stay
            generator=torch.Generator(),  # else torch draws from the global stream, which belongs to the model
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=2 if workers else None,
            pin_memory=on_gpu,
            multiprocessing_context=multiprocessing.get_context(START_METHOD) if workers else None,
        )

    def _iterate(self, requests: Sequence[Any]) -> Iterator[Batch]:
        self._stop()
        run = self._from_processes if self.kind == "workers" else self._from_memory
        self._running = run(requests)
        return self._running

    def _from_processes(self, requests: Sequence[Any]) -> Generator[Batch, None, None]:
        if self._processes is None:
            raise TissError("the loader was closed")
        self._requests[:] = requests
        try:
            for made in self._processes:
                yield self._finish(made)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            reason = "the system ended a loader process, most often because memory or /dev/shm ran out"
            raise TissError(f"{reason}: use fewer train.workers") from error

    def _from_memory(self, requests: Sequence[Any]) -> Generator[Batch, None, None]:
        if self._plan.source.device == self.device:
            for request in requests:
                yield self._finish(self._plan[request])
            return
        todo = iter(requests)
        waiting: deque[Future[RawBatch]] = deque()
        with ThreadPoolExecutor(AHEAD) as threads:
            try:
                while True:
                    for request in islice(todo, AHEAD - len(waiting)):
                        waiting.append(threads.submit(self._make_ready, request))
                    if not waiting:
                        return
                    yield self._finish(waiting.popleft().result())
            finally:
                for future in waiting:
                    future.cancel()

    def _make_ready(self, request: Any) -> RawBatch:
        made: RawBatch = self._plan[request]
        return made.pin_memory() if self.device.type == "cuda" else made

    def _finish(self, made: RawBatch) -> Batch:
        if made.error is not None:
            raise TissError(made.error)
        self.skipped.extend(id for id in made.skipped if id not in self.skipped)
        image = made.image.to(self.device, non_blocking=True)
        label = made.label.to(self.device, non_blocking=True).long()
        return Batch(image, label, made.ids)

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def close(self) -> None:
        """Ends worker processes and threads. The store in memory stays with the data set."""
        self._stop()
        self._processes = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


class TrainLoader(_Loader):
    """Augmented training crops in the order that (seed, step, epoch) gives; `how` are the options of `_Loader`.

    An iteration is one global batch of `batch` positions. It comes as `accumulate` parts, and each part as
    one `Batch` to each of `world` ranks: part a of rank r is slice number a · world + r of the global batch.
    So the ranks' batches, side by side, are the single process's batch, and the parts, in order, the whole.
    """

    def __init__(
        self,
        split: SplitLike,
        settings: AugmentSettings,
        *,
        batch: int,
        seed: int,
        step: int,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        **how: Any,
    ) -> None:
        if batch < 1 or batch % (world * accumulate):
            parts = f"{world} processes × {accumulate} parts" if accumulate > 1 else f"{world} processes"
            problem = f"{batch} cannot be split evenly over {parts}: choose a multiple"
            raise TissError(problem, setting="train.batch")
        if len(split.ids) == 0:
            raise TissError(f"{split.dataset.name}: no training image in this step")
        self.accumulate = accumulate
        plan = _TrainPlan(tuple(split.ids), batch, settings, seed, step, rank, world, accumulate)
        super().__init__(split, plan, settings.resize, **how)

    def __len__(self) -> int:
        """Iterations per epoch."""
        return max(1, len(self._plan.ids) // self._plan.batch)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This rank's batches of one epoch from iteration `start` on, `accumulate` of them per iteration."""
        return self._iterate(self._cut(epoch, range(start, len(self))))

    def once(self) -> Iterator[Batch]:
        """Every training image exactly once over all ranks, cut as in epoch 0; for a look before training."""
        count = len(self._plan.ids)
        requests = self._cut(0, range(-(-count // self._plan.batch)))
        for request, batch in zip(requests, self._iterate(requests), strict=True):
            kept = count - self._plan.positions(request).start  # the order repeats from its beginning
            if kept > 0:
                yield Batch(batch.image[:kept], batch.label[:kept], batch.ids[:kept])

    def _cut(self, epoch: int, iterations: range) -> list[tuple[int, int, int]]:
        return [(epoch, iteration, part) for iteration in iterations for part in range(self.accumulate)]


class TestLoader(_Loader):
    """Test images, each exactly once over all ranks; `how` are the options of `_Loader`. The last batch may be smaller.

    Mode "crop": shorter side to `size`, centre crop, N × 3 × size × size. Mode "slide": one whole image at a
    time, shorter side resized to `size`, its label at the original size.
    """

    __test__ = False  # not a test case, whatever its name

    def __init__(
        self,
        split: SplitLike,
        size: int,
        *,
        mode: Literal["crop", "slide"] = "crop",
        batch: int = 16,
        rank: int = 0,
        world: int = 1,
        **how: Any,
    ) -> None:
        crop = mode == "crop"
        plan = _TestPlan(tuple(split.ids[rank::world]), batch if crop else 1, size, mode)
        super().__init__(split, plan, size if crop else None, **how)  # a whole image keeps its label's size

    def __len__(self) -> int:
        return -(-len(self._plan.ids) // self._plan.batch)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._iterate(range(len(self))):
            if batch.ids:  # a batch whose every sample was skipped is empty
                yield batch
