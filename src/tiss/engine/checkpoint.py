"""The state of a step in progress: everything a resumed run needs, in safetensors and JSON.

The order of samples, augmentations and the learning rate are functions of the position, so no random state is kept.
The teacher is the last step's model folder, and the student before training follows from it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from tiss.config import from_mapping
from tiss.engine.sharding import whole
from tiss.errors import TissError
from tiss.files import atomic_folder, read_json, read_tensors, write_json, write_tensors

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
    model_state: dict[str, Tensor],
    optimizer_state: tuple[dict[str, Tensor], dict[str, Any]],
    method_state: dict[str, Tensor],
) -> None:
    """Writes `folder` whole or not at all."""
    tensors, numbers = optimizer_state
    with atomic_folder(folder) as temporary:
        write_tensors(temporary / "model.safetensors", model_state)
        write_tensors(temporary / "optimizer.safetensors", tensors)
        write_tensors(temporary / "method.safetensors", method_state)
        write_json(
            temporary / "state.json", {"format": FORMAT, "position": asdict(position), "optimizer": numbers}
        )


def read_position(folder: Path) -> Position | None:
    """The position of the checkpoint in `folder`, or None where there is none."""
    if not (folder / "state.json").exists():
        return None
    state = read_json(folder / "state.json")
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise TissError(f"{folder}: written by another version of tiss; remove it to train that step again")
    try:
        return from_mapping(Position, state.get("position"), "position")  # type: ignore[arg-type]
    except (TissError, TypeError) as error:
        raise TissError(f"{folder}: broken ({error}); remove it to train that step again") from error


def load_model(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    """Restores the model in place; returns the method's state."""
    expected = {key: (tuple(value.shape), value.dtype) for key, value in model.state_dict().items()}
    model.load_state_dict(read_tensors(folder / "model.safetensors", expected=expected))
    return read_tensors(folder / "method.safetensors")


def load_optimizer(folder: Path, optimizer: torch.optim.Optimizer) -> None:
    """Restores the optimizer in place."""
    numbers = read_json(folder / "state.json")["optimizer"]
    restore_optimizer(optimizer, read_tensors(folder / "optimizer.safetensors"), numbers)


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as named tensors and named numbers, by the order of its parameters.

    Where it is sharded, all processes must call this together.
    """
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{key}"] = whole(value)
            elif value is not None:
                numbers[f"{index}.{key}"] = value
    return tensors, numbers


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> None:
    """Loads what `flatten_optimizer` returned into `optimizer`."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **numbers}.items():
        index, _, key = name.partition(".")
        if isinstance(value, Tensor):
            value = laid_out_like(value, parameters[int(index)])
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def laid_out_like(value: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor of `parameter`'s shape, sharded and laid out in memory as that is; any other as it is.

    A file keeps no strides, and an optimizer's fused kernel accepts only what is laid out like its parameter.
    """
    if value.shape != parameter.shape:
        return value
    if isinstance(parameter, DTensor):
        value = value.to(parameter.device, parameter.dtype)
        return distribute_tensor(value, parameter.device_mesh, parameter.placements)
    return torch.empty_like(parameter.detach()).copy_(value)
