"""The machine a run has: device, precision and the other processes, through accelerate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers
from accelerate.utils import InitProcessGroupKwargs, LoggerType
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.fsdp import FSDPModule

from tiss.config import TrainConfig
from tiss.engine.determinism import make_deterministic, refusals_explained
from tiss.engine.watchdog import Watchdog
from tiss.errors import TissError, suggest
from tiss.files import doing
from tiss.models.syncbn import convert_sync_batch_norm

# the watchdog finds processes that are gone; this is for those that wait while one reads or writes for long
COLLECTIVE_TIMEOUT = timedelta(minutes=30)


class World:
    """One process among `size`, with its device; every exchange between processes goes through here."""

    def __init__(self, train: TrainConfig, folder: Path | None = None) -> None:
        """`folder` is where trackers that write files put them."""
        device = choose_device(train.device)
        check_tracker(train.tracker)
        if train.deterministic:
            make_deterministic(device)
        bf16 = train.precision == "bf16" or (train.precision == "auto" and device == "cuda")
        # accelerate keeps one state a process; a second run with another precision needs a new one
        AcceleratorState._reset_state(reset_partial_state=False)
        self.accelerator = Accelerator(
            cpu=device == "cpu",
            mixed_precision="bf16" if bf16 else "no",
            log_with=train.tracker,
            project_dir=folder,
            kwargs_handlers=[InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT)],
        )
        self.autocast_bf16 = bf16
        self.device: torch.device = self.accelerator.device
        self.rank = self.accelerator.process_index
        self.size = self.accelerator.num_processes
        self._watchdog: Watchdog | None = None
        if self.device.type == "cuda":
            # float32 products outside the models (contrast, POD) may use the matrix units, as the models do
            torch.set_float32_matmul_precision("high")

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @contextmanager
    def autocast(self) -> Iterator[None]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast_bf16):
            yield

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model for training: as it is, or with gradients (and batch norms) shared by the processes."""
        if self.size == 1 or isinstance(model, FSDPModule):
            return model
        convert_sync_batch_norm(model)
        devices = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=devices)

    @contextmanager
    def together(self) -> Iterator[None]:
        """All processes or none: what goes wrong in one of them within this block ends the others too."""
        if self.size == 1 or self._watchdog is not None:
            with refusals_explained():
                yield
            return
        self._watchdog = watchdog = Watchdog(_get_default_store(), self.rank, self.size)
        watchdog.start()
        try:
            with refusals_explained():
                yield
        except TissError as error:
            watchdog.fail(str(error))
            error.reported = self.rank > 0
            raise
        except Exception as error:
            patience = watchdog.timeout + 5 if is_broken_connection(error) else 0.0
            watchdog.fail(f"{type(error).__name__}: {error}", patience=patience)
            raise
        else:
            watchdog.stop()
        finally:
            self._watchdog = None

    def wait(self) -> None:
        with doing("wait"):
            self.accelerator.wait_for_everyone()

    def union(self, items: list[str]) -> list[str]:
        """What any of the processes holds, sorted."""
        lists: list[list[str]] = [items]
        if self.size > 1:
            lists = [[] for _ in range(self.size)]
            with doing("wait"):
                dist.all_gather_object(lists, items)
        return sorted({item for part in lists for item in part})

    def share_of(self, batch: int, accumulate: int) -> int:
        """Images of one micro-batch in this process; a batch that cannot be shared out evenly is refused."""
        parts = self.size * accumulate
        if batch % parts:
            nearest = max(1, round(batch / parts)) * parts
            more = f" × --train.accumulate {accumulate}" if accumulate > 1 else ""
            raise TissError(
                f"--train.batch {batch} cannot be split over {self.size} process(es){more}: take {nearest}"
            )
        return batch // parts


def is_broken_connection(error: Exception) -> bool:
    """Whether `error` is only what another process's end looks like from here."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def check_tracker(name: str | None) -> None:
    """A tracker that is unknown or not installed is an error: accelerate would leave it out in silence."""
    if name is None:
        return
    known = {str(kind.value): kind for kind in LoggerType}
    if name not in known or name == "all":
        raise TissError(suggest(name, set(known) - {"all"}, "--train.tracker"))
    if known[name] not in get_available_trackers():
        raise TissError(f"--train.tracker {name}: it is not installed here; pip install {name}")


def choose_device(name: str) -> str:
    """`auto` resolved to what the machine has; a device that is not there is an error."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return "cuda" if available["cuda"] else "mps" if available["mps"] else "cpu"
    if name not in available:
        raise TissError(f"--train.device takes auto, cpu, cuda or mps, not {name!r}")
    if not available[name]:
        raise TissError(
            f"--train.device {name}: torch {torch.__version__} finds no such device here; take cpu"
        )
    return name
