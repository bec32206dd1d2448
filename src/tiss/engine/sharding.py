"""Parameters, gradients and optimiser state spread over the processes (torch's `fully_shard`), while a step trains.

Only the loop over batches sees the sharded copy: before and after it every process holds the plain model, so
growing the head, testing, and all files are the same with and without. Checkpoints are gathered: a run may go on
with another number of processes, sharded or not. The teacher is never sharded: it has no gradients.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from tiss.engine.compilation import compile_model, compiled_parts, wants_compilation
from tiss.engine.training import StepTraining
from tiss.models.contract import Output
from tiss.models.model import SegmentationModel
from tiss.models.syncbn import convert_sync_batch_norm


@contextmanager
def spread(training: StepTraining) -> Iterator[StepTraining]:
    """The training with its model sharded, if the run asks for it; at the end the plain model has learnt it all."""
    world, plain = training.world, training.model
    if not training.config.train.shard or world.size == 1:
        yield training
        return
    plain.to("cpu")  # its place on the device is for the shards
    sharded = shard_model(copy.deepcopy(plain).to(world.device), world.device, world.size)
    if wants_compilation(training.config.train, world):
        compile_model(sharded, whole=training.config.train.compile == "on")
    with warnings.catch_warnings():
        # outputs are views, which only matters to operations in place on them: no loss has any
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        yield replace(training, model=sharded)
    plain.load_state_dict(full_state(sharded))
    plain.to(world.device)


def shard_model(model: SegmentationModel, device: torch.device, size: int) -> SegmentationModel:
    """`model` with its parameters spread over `size` processes, gathered block by block when they are needed."""
    _teach_output()
    convert_sync_batch_norm(model)
    mesh = init_device_mesh(device.type, (size,))
    for part in compiled_parts(model):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def full_state(model: torch.nn.Module) -> dict[str, Tensor]:
    """The state of a model, whole in every process; all processes must ask for it together."""
    return {name: whole(value) for name, value in model.state_dict().items()}


def whole(value: Tensor) -> Tensor:
    """A tensor as it is, or gathered from its shards: then all processes must ask for it together."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def shared_like(value: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor of `parameter`'s shape spread and laid out in memory as that is; any other as it is.

    A file keeps no strides, and an optimiser's one kernel for all takes only what lies like its parameter.
    """
    if value.shape != parameter.shape:
        return value
    if isinstance(parameter, DTensor):
        return distribute_tensor(
            value.to(parameter.device, parameter.dtype), parameter.device_mesh, parameter.placements
        )
    return torch.empty_like(parameter.detach()).copy_(value)


def _teach_output() -> None:
    """Tells torch where the tensors in a model's output are: the backward pass is prepared at them."""
    if Output not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(Output, _flatten, _unflatten)


def _flatten(output: Output) -> tuple[list[Any], Any]:
    return [output.logits, *output.features], output.resolution


def _unflatten(tensors: Iterable[Any], resolution: Any) -> Output:
    logits, *features = tensors
    return Output(logits, tuple(features), resolution)
