"""The device, the precision and the other processes: everything a run needs to know about its machine."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers
from accelerate.utils import InitProcessGroupKwargs, LoggerType
from torch import nn

from tiss.config import TrainConfig
from tiss.errors import TissError, suggest
from tiss.models import SegmentationModel

WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it for the same numbers twice


class World:
    """One process among `size`, with its device; every exchange between processes goes through here."""

    def __init__(self, train: TrainConfig, folder: Path | None = None) -> None:
        """`folder` is where trackers that write files put them."""
        device = choose_device(train.device)
        check_tracker(train.tracker)
        if train.deterministic:
            make_deterministic(device)
        self.autocast_bf16 = train.precision == "bf16" or (train.precision == "auto" and device == "cuda")
        # accelerate keeps one state per process; a second run with another precision needs a new one
        AcceleratorState._reset_state(reset_partial_state=False)
        self.accelerator = Accelerator(
            cpu=device == "cpu",
            mixed_precision="bf16" if self.autocast_bf16 else "no",
            log_with=train.tracker,
            project_dir=folder,
            kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(minutes=train.timeout))],
        )
        self.timeout = train.timeout
        self.device: torch.device = self.accelerator.device
        self.rank = self.accelerator.process_index
        self.size = self.accelerator.num_processes
        if self.size > 1:
            # threads of a group that is still there at the end of the process would abort it
            atexit.register(self.accelerator.state.destroy_process_group)
        if self.device.type == "cuda":
            # float32 products outside the models (contrast, POD) may use the matrix units, as the models do
            torch.set_float32_matmul_precision("high")

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast_bf16)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model for training: as it is, or with gradients shared by the processes.

        On GPUs batch norms share their statistics too. On CPUs, where torch has no such batch norm, each process
        normalises with its own images, and the running statistics are those of the first process.
        """
        if self.size == 1:
            return model
        if self.device.type == "cuda":
            nn.SyncBatchNorm.convert_sync_batchnorm(model)
        devices = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=devices)

    @contextmanager
    def failures_explained(self) -> Iterator[None]:
        """Turns what torch says about a lost process or a refused operation into one line with a remedy."""
        try:
            yield
        except RuntimeError as error:  # DistError is one
            text = str(error)
            if "use_deterministic_algorithms" in text:
                problem = f"true: {text.split('. ')[0]}; set it to false, or choose another method or encoder"
                raise TissError(problem, setting="train.deterministic") from error
            if self.size == 1 or not (isinstance(error, dist.DistError) or "gloo" in text):
                raise
            if "imed out" in text:
                problem = (
                    f"{self.timeout:g}: no answer from another process for so many minutes; if one of them "
                )
                problem += "needs longer, raise it; else find out which one hangs (py-spy dump), then resume"
                raise TissError(problem, setting="train.timeout") from error
            problem = "another process ended: its own message says why; when that is mended, resume the run"
            raise TissError(problem) from error

    def wait(self) -> None:
        self.accelerator.wait_for_everyone()

    def share_of(self, batch: int, accumulate: int) -> int:
        """Images of one micro-batch in this process; a batch that does not divide evenly is refused."""
        parts = self.size * accumulate
        if batch % parts:
            nearest = max(1, round(batch / parts)) * parts
            more = f" × train.accumulate {accumulate}" if accumulate > 1 else ""
            problem = f"{batch}: cannot be split over {self.size} process(es){more}: use {nearest}"
            raise TissError(problem, setting="train.batch")
        return batch // parts


def check_tracker(name: str | None) -> None:
    """A tracker that is unknown or not installed is an error: accelerate would leave it out in silence."""
    if name is None:
        return
    known = {str(kind.value): kind for kind in LoggerType}
    if name not in known or name == "all":
        raise TissError(suggest(name, set(known) - {"all"}, "tracker"), setting="train.tracker")
    if known[name] not in get_available_trackers():
        raise TissError(f"{name}: it is not installed here; pip install {name}", setting="train.tracker")


def choose_device(name: str) -> str:
    """`auto` resolved to what the machine has; a device that is not there is an error."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if available[device])
    if name not in available:
        raise TissError(f"takes auto, cpu, cuda or mps, not {name!r}", setting="train.device")
    if not available[name]:
        problem = f"{name}: torch {torch.__version__} finds no such device here; use cpu"
        raise TissError(problem, setting="train.device")
    return name


def computes_bf16(train: TrainConfig) -> bool:
    """Whether a CPU computes features in bf16: twice as fast where it has instructions for it, else slower."""
    able: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # torch before 2.13 may not tell
    native = bool(able.get("avx512_bf16") or able.get("amx_bf16"))
    return train.precision == "bf16" or (train.precision == "auto" and native)


def make_deterministic(device: torch.device | str, enabled: bool = True) -> None:
    """From here on every operation gives the same numbers each time, or is an error (on a GPU).

    cuBLAS reads its setting when it starts, so this comes before the first product. Compiled kernels must not be
    chosen by timing them: another choice adds in another order.
    """
    if enabled:
        os.environ.setdefault(*WORKSPACE)
    kind = torch.device(device).type
    if kind == "cuda":
        import_module("torch._inductor.config").deterministic = enabled  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(enabled, warn_only=kind != "cuda")


def make_fast(model: SegmentationModel, train: TrainConfig, world: World) -> None:
    """Lays the model out for the device and compiles what pays, in place; parameters keep their names.

    `train.compile auto` compiles on a GPU only, and only the blocks of a transformer: they share their code, so one
    compilation serves all of them, teacher and student, and takes seconds. A CNN takes 45 seconds to compile and
    gains 1.3 times (ResNet-50 with ASPP on an H200): `on` does that too. The head, which grows, is never compiled.
    """
    if world.device.type == "cuda":
        model.body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if train.compile == "on" or (train.compile == "auto" and world.device.type == "cuda"):
        blocks = getattr(model.encoder, "blocks", None)
        parts = blocks if isinstance(blocks, nn.ModuleList) else [model.body] if train.compile == "on" else []
        for part in parts:
            if part._compiled_call_impl is None:  # else done at an earlier step
                part.compile(dynamic=False)
