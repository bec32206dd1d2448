"""Loaders: batches of a split, from worker processes or from memory, the same ones either way.

What a batch holds is a pure function of (seed, step, epoch, position), in whichever process it is made; where the
pixels come from is a source. A rank makes only its own share of each global batch.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from tiss.data.augment import AugmentSettings, Place, centre, crop_batch, draw, shrink
from tiss.data.base import Batch, Split
from tiss.data.store import FileSource, MemoryStore, cores, open_store
from tiss.errors import TissError
from tiss.randomness import epoch_order

AHEAD = 4  # batches that threads make before they are asked for
# fork: a user's script then needs no __main__ guard, and data made in memory is not copied
START_METHOD = "fork" if sys.platform == "linux" else "spawn"

_order = lru_cache(maxsize=2)(epoch_order)  # of an epoch, for all its batches


@dataclass
class RawBatch:
    """A batch on its way: labels are still one byte per pixel, already in channels."""

    image: Tensor
    label: Tensor
    ids: list[str]

    def pin_memory(self) -> RawBatch:
        return RawBatch(self.image.pin_memory(), self.label.pin_memory(), self.ids)


class _Loader(torch.utils.data.Dataset[RawBatch | TissError]):
    """Makes batches in worker processes or from the store in memory.

    `loader[request]` is one batch, in whichever process; a subclass chooses its samples and cuts them.

    Args:
        split: the samples; `ids` are this loader's part of them.
        shorter: the shorter side that images need at most.
        kind: "auto" takes memory where the samples fit.
        workers: processes; None for as many as suit the machine.
        device: where batches go.
    """

    def __init__(
        self,
        split: Split,
        ids: Sequence[str],
        shorter: int | None,
        *,
        kind: Literal["auto", "workers", "memory"] = "auto",
        workers: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.ids = ids
        self.device = torch.device(device)
        files = FileSource(split.dataset, split.split, shorter)
        store = None if kind == "workers" else open_store(files, ids, kind, self.device, split.every)
        self.kind = "workers" if store is None else "memory"
        self._source: FileSource | MemoryStore = store or files
        where = "cpu" if store is None else store.device
        self._table = torch.from_numpy(split.table).to(where)
        self._tables = {id: torch.from_numpy(table).to(where) for id, table in split.tables.items()}
        self._requests: list[Any] = []
        self._running: Generator[Batch, None, None] | None = None
        self._processes = self._start_processes(workers) if store is None else None

    def choose(self, request: Any) -> Sequence[str]:
        """The ids of a batch."""
        raise NotImplementedError

    def cut(self, request: Any, table: Tensor, buffer: Tensor, places: list[Place]) -> tuple[Tensor, Tensor]:
        """Images and labels of a batch, from a buffer of packed pixels."""
        raise NotImplementedError

    def _table_of(self, ids: Sequence[str]) -> Tensor:
        """The table of all samples, or one for each where some have their own."""
        own = self._tables
        return torch.stack([own.get(id, self._table) for id in ids]) if own else self._table

    def __getitem__(self, request: Any) -> RawBatch | TissError:
        ids = self.choose(request)
        try:
            return RawBatch(*self.cut(request, self._table_of(ids), *self._source.collect(ids)), list(ids))
        except TissError as error:  # raised by the process that asked
            return error

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_processes": None, "_running": None}

    def _start_processes(self, workers: int | None) -> DataLoader[Any]:
        on_gpu = self.device.type == "cuda"
        if workers is None:  # all cores of this rank with a GPU, half of them without
            workers = min(16, cores()) if on_gpu else min(4, cores() // 2)
        return DataLoader(
            self,
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
        if self._running is not None:
            self._running.close()
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
        if self._table.device.type == self.device.type:
            yield from map(self._finish, map(self.__getitem__, requests))
            return
        waiting: deque[Future[RawBatch | TissError]] = deque()
        with ThreadPoolExecutor(AHEAD) as threads:
            for request in requests:
                waiting.append(threads.submit(self._make_ready, request))
                if len(waiting) == AHEAD:
                    yield self._finish(waiting.popleft().result())
            for future in waiting:
                yield self._finish(future.result())

    def _make_ready(self, request: Any) -> RawBatch | TissError:
        made = self[request]
        return made.pin_memory() if self.device.type == "cuda" and isinstance(made, RawBatch) else made

    def _finish(self, made: RawBatch | TissError) -> Batch:
        if isinstance(made, TissError):
            raise made
        image = made.image.to(self.device, non_blocking=True)
        label = made.label.to(self.device, non_blocking=True).long()
        return Batch(image, label, made.ids)

    def close(self) -> None:
        """Ends worker processes and threads. The store in memory stays with the data set."""
        if self._running is not None:
            self._running.close()
        self._running = self._processes = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


class TrainLoader(_Loader):
    """Augmented training crops in the order that (seed, step, epoch) gives; `how` are the options of `_Loader`.

    An iteration is one global batch of `batch` positions. It comes as `accumulate` parts, and each part as
    one `Batch` to each of `world` ranks: part a of rank r is slice number a · world + r of the global batch.
    So the ranks' batches, side by side, are the single process's batch, and the parts, in order, the whole.
    A request is (epoch, iteration, part). With `views`, an image is cut in so many ways, which take turns.
    """

    def __init__(
        self,
        split: Split,
        settings: AugmentSettings,
        *,
        batch: int,
        seed: int,
        step: int,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
        views: int | None = None,
        **how: Any,
    ) -> None:
        if batch < 1 or batch % (world * accumulate):
            parts = f"{world} processes × {accumulate} parts" if accumulate > 1 else f"{world} processes"
            problem = f"{batch} cannot be split evenly over {parts}: choose a multiple"
            raise TissError(problem, setting="train.batch")
        if len(split.ids) == 0:
            raise TissError(f"{split.dataset.name}: no training image in this step")
        self.settings, self.batch, self.accumulate = settings, batch, accumulate
        self.seed, self.step, self.rank, self.world, self.views = seed, step, rank, world, views
        super().__init__(split, split.ids, settings.resize, **how)

    def __len__(self) -> int:
        """Iterations per epoch."""
        return max(1, len(self.ids) // self.batch)

    def _positions(self, request: tuple[int, int, int]) -> range:
        _, iteration, part = request
        size = self.batch // (self.world * self.accumulate)
        first = iteration * self.batch + (part * self.world + self.rank) * size
        return range(first, first + size)

    def choose(self, request: tuple[int, int, int]) -> Sequence[str]:
        order = _order(self.seed, self.step, request[0], len(self.ids))
        return [self.ids[order[position % len(order)]] for position in self._positions(request)]

    def cut(
        self, request: tuple[int, int, int], table: Tensor, buffer: Tensor, places: list[Place]
    ) -> tuple[Tensor, Tensor]:
        keys: Iterable[tuple[int | str, ...]] = (
            (request[0], position) for position in self._positions(request)
        )
        if self.views:
            keys = ((request[0] % self.views, id) for id in self.choose(request))
        augmentations = [
            draw(self.settings, *size, (self.seed, "augment", self.step, *key))
            for key, (_, size) in zip(keys, places, strict=True)
        ]
        crop = (self.settings.crop, self.settings.crop)
        return crop_batch(buffer, places, augmentations, crop, table)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This rank's batches of one epoch from iteration `start` on, `accumulate` of them per iteration."""
        return self._iterate(self._parts(epoch, range(start, len(self))))

    def once(self) -> Iterator[Batch]:
        """Every training image exactly once over all ranks, cut as in epoch 0; for a look before training."""
        count = len(self.ids)
        requests = self._parts(0, range(-(-count // self.batch)))
        for request, batch in zip(requests, self._iterate(requests), strict=True):
            kept = count - self._positions(request).start  # the order repeats from its beginning
            if kept > 0:
                yield Batch(batch.image[:kept], batch.label[:kept], batch.ids[:kept])

    def _parts(self, epoch: int, iterations: range) -> list[tuple[int, int, int]]:
        return [(epoch, iteration, part) for iteration in iterations for part in range(self.accumulate)]


class TestLoader(_Loader):
    """Test images, each exactly once over all ranks; `how` are the options of `_Loader`. The last batch may be smaller.

    Mode "crop": shorter side to `size`, centre crop, N × 3 × size × size. Mode "slide": one whole image at a
    time, shorter side resized to `size`, its label at the original size. A request is the batch's number.
    """

    __test__ = False  # not a test case, whatever its name

    def __init__(
        self,
        split: Split,
        size: int,
        *,
        mode: Literal["crop", "slide"] = "crop",
        batch: int = 16,
        rank: int = 0,
        world: int = 1,
        **how: Any,
    ) -> None:
        self.size, self.mode, self.batch = size, mode, batch if mode == "crop" else 1
        shorter = size if mode == "crop" else None  # a whole image keeps its label's size
        super().__init__(split, split.ids[rank::world], shorter, **how)

    def __len__(self) -> int:
        return -(-len(self.ids) // self.batch)

    def __iter__(self) -> Iterator[Batch]:
        return self._iterate(range(len(self)))

    def choose(self, request: int) -> Sequence[str]:
        return self.ids[request * self.batch : (request + 1) * self.batch]

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
