"""What a step in progress writes: its metrics, and a checkpoint with everything that a resumed run needs.

The order of samples, augmentations and the learning rate are functions of the position, so no random state is kept.
The teacher is the last step's model folder, and the student before training follows from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tiss.config import from_mapping
from tiss.errors import TissError
from tiss.files import (
    append_line,
    atomic_folder,
    read_json,
    read_tensors,
    truncate_to,
    write_json,
    write_tensors,
)

if TYPE_CHECKING:
    from tiss.engine.device import World

FORMAT = 1


@dataclass(frozen=True)
class Position:
    """How far a run has come: `iteration` counts the updates done in this step."""

    step: int
    iteration: int
    metrics_bytes: int = 0  # length of metrics.jsonl at that point
    train_seconds: float = 0.0  # of this step so far


def save_checkpoint(
    folder: Path,
    position: Position,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    method_state: dict[str, Tensor],
) -> None:
    """Writes `folder` whole or not at all."""
    with atomic_folder(folder) as temporary:
        write_tensors(temporary / "model.safetensors", model.state_dict())
        write_tensors(temporary / "optimizer.safetensors", optimizer_tensors(optimizer))
        write_tensors(temporary / "method.safetensors", method_state)
        write_json(temporary / "state.json", {"format": FORMAT, "position": asdict(position)})


def read_position(folder: Path) -> Position | None:
    """The position of the checkpoint in `folder`, or None where there is none."""
    if not (folder / "state.json").exists():
        return None
    with remedied(folder):
        state = read_json(folder / "state.json")
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise TissError("written by another version of tiss")
        return from_mapping(Position, state.get("position"), "position")  # type: ignore[arg-type]


@contextmanager
def remedied(folder: Path) -> Iterator[None]:
    """Says what to do about a checkpoint that cannot be read."""
    try:
        yield
    except (TissError, TypeError, ValueError, IndexError) as error:
        raise TissError(f"{folder}: broken ({error}); remove it to train that step again") from error


def load_model(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    """Restores the model in place; returns the method's state."""
    expected = {key: (tuple(value.shape), value.dtype) for key, value in model.state_dict().items()}
    with remedied(folder):
        model.load_state_dict(read_tensors(folder / "model.safetensors", expected=expected))
        return read_tensors(folder / "method.safetensors")


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's state by names such as "3.exp_avg": the parameter's place and the kind."""
    states = optimizer.state_dict()["state"]
    pairs = {f"{place}.{kind}": value for place, state in states.items() for kind, value in state.items()}
    return {name: value for name, value in pairs.items() if value is not None}


def load_optimizer(folder: Path, optimizer: torch.optim.Optimizer) -> None:
    """Restores the optimizer in place."""
    content: dict[str, Any] = optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    with remedied(folder):
        for name, value in read_tensors(folder / "optimizer.safetensors").items():
            place, _, kind = name.partition(".")
            parameter = parameters[int(place)]
            if value.shape == parameter.shape:
                # a file keeps no strides, and a fused kernel accepts only what is laid out like its parameter
                value = torch.empty_like(parameter.detach()).copy_(value)
            content["state"].setdefault(int(place), {})[kind] = value
    optimizer.load_state_dict(content)


class Journal:
    """Where a training step writes its metrics and its checkpoint; without a folder, nowhere."""

    def __init__(self, world: World, folder: Path | None = None) -> None:
        self.world, self.folder = world, folder
        self.checkpoint = folder / "checkpoint" if folder else None
        self.metrics = folder / "metrics.jsonl" if folder else None

    def log(self, line: dict[str, Any]) -> None:
        """One line of metrics."""
        if self.metrics is None:
            return
        if self.world.is_main:
            append_line(self.metrics, json.dumps({**line, "time": round(time.time(), 3)}))
        if self.world.accelerator.log_with:
            part = f"step-{line['step']}"  # iterations start at 0 in every step, so each has its own curves
            values = {f"{part}/loss/{name}": value for name, value in line["losses"].items()}
            values |= {f"{part}/{name}": line[name] for name in ("loss", "images_per_second")}
            self.world.accelerator.log(values, step=line["iteration"])

    def size(self) -> int:
        """Bytes of metrics written so far."""
        return self.metrics.stat().st_size if self.metrics and self.metrics.exists() else 0

    def rewind(self, size: int) -> None:
        """Drops metrics written after the checkpoint that a run resumes from."""
        if self.metrics and self.world.is_main:
            truncate_to(self.metrics, size)

    def restart(self, step: int) -> None:
        """Drops metrics of `step`: an attempt at it was stopped before its first checkpoint."""

        def is_earlier(line: bytes) -> bool:
            try:
                return bool(json.loads(line)["step"] < step)
            except (ValueError, KeyError, TypeError):  # a line that was cut off
                return False

        if self.metrics and self.size():
            with open(self.metrics, "rb") as lines:
                self.rewind(sum(map(len, takewhile(is_earlier, lines))))
