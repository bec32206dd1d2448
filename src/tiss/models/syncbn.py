"""Batch norm over all processes, on any device: torch's own needs a GPU, and this project is tested without.

Mean, then squared deviation from it, are summed over the processes by an all-reduce whose backward pass is an
all-reduce too. So two processes with half a batch each compute what one computes with the whole.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class SumOverProcesses(torch.autograd.Function):
    """The sum of a tensor over all processes; each one's gradient is the sum of all gradients."""

    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


class SyncBatchNorm(_BatchNorm):
    """Batch norm of N × C × … whose statistics in training are those of all processes' batches together."""

    def _check_input_dim(self, inputs: Tensor) -> None:
        if inputs.ndim < 2:
            raise ValueError(f"expected N × C × …, got {inputs.ndim} dimensions")

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(inputs)
        return self.forward_together(inputs)

    @torch.compiler.disable  # a collective within autograd; the graph is cut here
    def forward_together(self, inputs: Tensor) -> Tensor:
        self._check_input_dim(inputs)
        dimensions = [0, *range(2, inputs.ndim)]
        shape = [1, -1] + [1] * (inputs.ndim - 2)
        values = inputs.float()
        here = torch.tensor([float(values.numel() // values.shape[1])], device=values.device)
        sums: Tensor = SumOverProcesses.apply(torch.cat([values.sum(dimensions), here]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = values - mean.view(shape)
        squares: Tensor = SumOverProcesses.apply(centred.square().sum(dimensions))
        variance = squares / count
        self._remember(mean.detach(), squares.detach() / (count - 1).clamp(min=1))
        normal = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(inputs.dtype)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Moves the running statistics, the variance without bias, as torch's batch norm does."""
        if not self.track_running_stats:
            return
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


def convert_sync_batch_norm(module: nn.Module) -> nn.Module:
    """Replaces every batch norm within `module` by one over all processes, in place, with the same tensors.

    Names in the state dict stay as they are. A `module` that is itself a batch norm is returned replaced.
    """
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
        replaced = SyncBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        replaced._parameters = module._parameters  # the very same tensors: an optimiser may hold them already
        replaced._buffers = module._buffers
        replaced.training = module.training
        return replaced
    for name, child in module.named_children():
        new = convert_sync_batch_norm(child)
        if new is not child:
            module.add_module(name, new)
    return module


def has_batch_norm(module: nn.Module) -> bool:
    """Whether statistics of batches play a part anywhere in `module`."""
    return any(isinstance(part, _BatchNorm) for part in module.modules())
