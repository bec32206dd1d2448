"""Loaders: batches of a split, from worker processes or from memory, the same ones either way.

What a batch holds is decided by a plan, a pure function of (seed, step, epoch, position); where the pixels
come from is a source. A rank makes only its own share of each global batch.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tiss.data.augment import AugmentSettings
from tiss.data.base import Batch, Dataset
from tiss.data.batches import Plan, RawBatch, TestPlan, TrainPlan
from tiss.data.store import FileSource, MemoryStore, Progress, cores, open_store
from tiss.errors import TissError

Kind = Literal["auto", "workers", "memory"]
AHEAD = 4  # batches that threads make before they are asked for


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


class _Loader:
    """Runs a plan's requests through worker processes or over the store in memory."""

    def __init__(
        self,
        split: SplitLike,
        plan: Plan,
        *,
        kind: Kind,
        workers: int | None,
        device: torch.device | str,
        progress: Progress | None,
    ) -> None:
        self.device = torch.device(device)
        self.skipped: list[str] = []  # ids of samples that could not be read, each once
        self._plan = plan
        self._store: MemoryStore | None = None
        self._processes: DataLoader[Any] | None = None
        self._running: Generator[Batch, None, None] | None = None
        files = FileSource(split.dataset, split.split, plan.shorter)
        if kind != "workers":
            self._store = open_store(files, plan.ids, kind, self.device, progress)
        self.kind: Kind = "workers" if self._store is None else "memory"
        self._table = torch.from_numpy(split.table)
        self._requests: list[Any] = []
        if self._store is None:
            source = _WorkerSource(plan, files, self._table)
            self._processes = _start_processes(source, self._requests, workers, self.device)

    def _iterate(self, requests: Sequence[Any]) -> Iterator[Batch]:
        self._stop()
        if self._store is not None:
            self._running = self._from_memory(requests, self._store)
        else:
            self._running = self._from_processes(requests)
        return self._running

    def _from_processes(self, requests: Sequence[Any]) -> Generator[Batch, None, None]:
        if self._processes is None:
            raise TissError("the loader was closed")
        self._requests[:] = requests
        batches = iter(self._processes)
        while True:
            try:
                made = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                raise _explained(error) from error
            yield self._finish(made)

    def _from_memory(self, requests: Sequence[Any], store: MemoryStore) -> Generator[Batch, None, None]:
        table = self._table.to(store.device)
        if store.device == self.device:
            for request in requests:
                yield self._finish(self._plan.make(request, store, table))
            return
        with ThreadPoolExecutor(AHEAD) as threads:
            waiting: list[Future[RawBatch]] = []
            try:
                for number in range(len(requests)):
                    while len(waiting) + number < len(requests) and len(waiting) < AHEAD:
                        request = requests[number + len(waiting)]
                        waiting.append(threads.submit(self._make_ready, request, store, table))
                    yield self._finish(waiting.pop(0).result())
            finally:
                for future in waiting:
                    future.cancel()

    def _make_ready(self, request: Any, store: MemoryStore, table: Tensor) -> RawBatch:
        made = self._plan.make(request, store, table)
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

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TrainLoader(_Loader):
    """Augmented training crops in the order that (seed, step, epoch) gives.

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
        kind: Kind = "auto",
        workers: int | None = None,
        device: torch.device | str = "cpu",
        on_error: Literal["stop", "skip"] = "stop",
        progress: Progress | None = None,
    ) -> None:
        if batch < 1 or batch % (world * accumulate):
            parts = f"{world} processes × {accumulate} parts" if accumulate > 1 else f"{world} processes"
            raise TissError(
                f"{batch} cannot be split evenly over {parts}: choose a multiple", setting="train.batch"
            )
        if len(split.ids) == 0:
            raise TissError(f"{split.dataset.name}: no training image in this step")
        self.accumulate = accumulate
        self._length = max(1, len(split.ids) // batch)
        self._order = TrainPlan(
            tuple(split.ids), on_error == "skip", settings, batch, seed, step, rank, world * accumulate, world
        )
        super().__init__(split, self._order, kind=kind, workers=workers, device=device, progress=progress)

    def __len__(self) -> int:
        """Iterations an epoch."""
        return self._length

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This rank's batches of one epoch from iteration `start` on, `accumulate` of them an iteration."""
        parts = range(self.accumulate)
        return self._iterate([(epoch, i, part) for i in range(start, self._length) for part in parts])

    def once(self) -> Iterator[Batch]:
        """Every training image exactly once over all ranks, cut as in epoch 0; for a look before training."""
        count = len(self._order.ids)
        iterations = -(-count // self._order.batch)
        requests = [(0, i, part) for i in range(iterations) for part in range(self.accumulate)]
        for (_, iteration, part), batch in zip(requests, self._iterate(requests), strict=True):
            kept = (
                count - self._order.positions(iteration, part).start
            )  # the order repeats from its beginning
            if kept > 0:
                yield Batch(batch.image[:kept], batch.label[:kept], batch.ids[:kept])


class TestLoader(_Loader):
    """Test images, each exactly once over all ranks; the last batch may be smaller.

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
        kind: Kind = "auto",
        workers: int | None = None,
        device: torch.device | str = "cpu",
        on_error: Literal["stop", "skip"] = "stop",
        progress: Progress | None = None,
    ) -> None:
        ids = tuple(split.ids[rank::world])
        self._length = -(-len(ids) // batch) if mode == "crop" else len(ids)
        plan = TestPlan(ids, on_error == "skip", size, mode, batch)
        super().__init__(split, plan, kind=kind, workers=workers, device=device, progress=progress)

    def __len__(self) -> int:
        """Batches of this rank."""
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._iterate(range(self._length)):
            if batch.ids:  # a batch whose every sample was skipped is empty
                yield batch


@dataclass
class _WorkerSource(torch.utils.data.Dataset[RawBatch]):
    """What a worker process gets: `source[request]` is a finished batch, or what is wrong with it."""

    plan: Plan
    files: FileSource
    table: Tensor

    def __getitem__(self, request: Any) -> RawBatch:
        return self.plan.make(request, self.files, self.table)


def _explained(error: RuntimeError) -> Exception:
    """A process that the system ended, explained; any other error as it is."""
    if "DataLoader worker" not in str(error):
        return error
    return TissError(
        "a loader process was ended by the system, most often because memory or shared memory (/dev/shm) ran out: "
        "use fewer train.workers"
    )


def _start_processes(
    source: _WorkerSource, requests: list[Any], workers: int | None, device: torch.device
) -> DataLoader[Any]:
    count = default_workers(device) if workers is None else workers
    return DataLoader(
        source,
        batch_size=None,
        sampler=requests,  # filled again for each epoch; the processes stay
        generator=torch.Generator(),  # else torch draws from the global stream, which belongs to the model
        num_workers=count,
        persistent_workers=count > 0,
        prefetch_factor=2 if count > 0 else None,
        pin_memory=device.type == "cuda",
        multiprocessing_context=multiprocessing.get_context(_start_method()) if count > 0 else None,
    )


def _start_method() -> str:
    """fork on Linux: a user's script then needs no __main__ guard, and data made in memory is not copied."""
    return "fork" if sys.platform == "linux" else "spawn"


def default_workers(device: torch.device) -> int:
    """Processes for this rank: all cores of this rank with a GPU, half of them without."""
    return min(16, cores()) if device.type == "cuda" else min(4, cores() // 2)
