"""Losses are computed in float32 at least, whatever precision the model runs in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def full_precision(tensor: Tensor) -> Tensor:
    """Half precision to float32; float32 and float64 as they are."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def without_autocast(tensor: Tensor) -> torch.autocast:
    """A context in which matrix products keep the precision of their operands."""
    return torch.autocast(tensor.device.type, enabled=False)


@contextmanager
def exact_products() -> Iterator[None]:
    """Matrix products of float32 in float32, also where a GPU may otherwise round their operands to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
