"""Parameters, gradients and optimizer state sharded over the processes (torch's `fully_shard`) while a step trains.

Only the training loop sees the sharded copy: growing the head, testing and all files are the same without it.
The teacher is never sharded: it has no gradients.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tiss.config import TrainConfig
from tiss.engine.device import World, compile_model, compiled_parts
from tiss.models import Output, SegmentationModel


@contextmanager
def sharded(model: SegmentationModel, train: TrainConfig, world: World) -> Iterator[SegmentationModel]:
    """The model to train: sharded if the run asks for it; at the end the plain one has the trained weights."""
    if not train.shard or world.size == 1:
        yield model
        return
    if Output not in pytree.SUPPORTED_NODES:  # torch prepares the backward pass at an output's tensors
        pytree.register_pytree_node(
            Output,
            lambda output: ([output.logits, *output.features], output.resolution),
            lambda tensors, resolution: Output(next(it := iter(tensors)), tuple(it), resolution),
        )
    model.to("cpu")  # its place on the device is for the shards
    shards = copy.deepcopy(model).to(world.device)
    if world.device.type == "cuda":
        nn.SyncBatchNorm.convert_sync_batchnorm(shards)
    mesh = init_device_mesh(world.device.type, (world.size,))
    for part in (*compiled_parts(shards), shards):
        fully_shard(part, mesh=mesh)
    compile_model(shards, train, world)
    with warnings.catch_warnings():  # outputs are views, which matters to in-place operations only
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        yield shards
    model.load_state_dict(full_state(shards))
    model.to(world.device)


def full_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model, whole in every process; where it is sharded, all processes must call this."""
    return {name: whole(value) for name, value in model.state_dict().items()}


def whole(value: Tensor) -> Tensor:
    """A tensor as it is, or gathered from its shards: then all processes must call this."""
    return value.full_tensor() if isinstance(value, DTensor) else value
