"""Optimiser and learning-rate schedule: both follow from the configuration and the iteration alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tiss.config import TrainConfig
from tiss.models.model import SegmentationModel


def build_optimizer(
    model: SegmentationModel, train: TrainConfig, step: int, device: torch.device
) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum or AdamW; the encoder's parameters learn `encoder_lr` times as fast as the rest.

    On a GPU the update is one kernel, and rates are tensors: a captured step reads what the schedule writes.
    """
    rate = train.lr if step == 0 else train.step_lr
    assert rate is not None and train.encoder_lr is not None and train.weight_decay is not None, (
        "resolve first"
    )
    encoder = {id(parameter) for parameter in model.encoder.parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            factor = train.encoder_lr if id(parameter) in encoder else 1.0
            # AdamW's decay is decoupled and strong: norms, biases and tokens are left out of it, as is usual
            decay = 0.0 if train.optimizer == "adamw" and parameter.ndim < 2 else train.weight_decay
            groups.setdefault((factor, decay), []).append(parameter)
    gpu = device.type == "cuda"
    parameters: list[dict[str, Any]] = []
    for (factor, decay), members in groups.items():
        peak = rate * factor
        lr = torch.tensor(peak, device=device) if gpu else peak
        parameters.append({"params": members, "lr": lr, "peak": peak, "weight_decay": decay})
    if train.optimizer == "adamw":
        return torch.optim.AdamW(parameters, fused=gpu, capturable=gpu)
    return torch.optim.SGD(parameters, momentum=train.momentum, nesterov=train.momentum > 0, fused=gpu)


def rate_factor(iteration: int, total: int, warmup: int, power: float) -> float:
    """Linear warm-up, then polynomial decay to zero at `total`.

    >>> [round(rate_factor(i, 10, 2, 1.0), 2) for i in (0, 1, 2, 9)]
    [0.5, 1.0, 0.8, 0.1]
    """
    rise = min(1.0, (iteration + 1) / warmup) if warmup else 1.0
    return rise if iteration < warmup else float((1 - iteration / total) ** power)


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(group["peak"] * factor)
        else:
            group["lr"] = group["peak"] * factor
