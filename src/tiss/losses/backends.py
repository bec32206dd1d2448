"""Which way a pixel loss is computed: chosen by device and size, or as `Resolution.fused` demands."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

import torch

from tiss.errors import TissError
from tiss.losses.chunked import chunked
from tiss.losses.grouped import Backend, Task, plain

KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def choose(task: Task) -> Backend:
    """The backend for `task`: plain where `fused` is off or nothing can be gained."""
    fused = task.to.fused
    if fused == "off":
        return plain
    problem = _problem(task)
    if fused == "on" and problem:
        raise TissError(f"--train.fused on: {problem}; use auto or off")
    if problem or (fused == "auto" and not _pays(task)):
        return plain
    if task.logits.is_cuda and has_triton() and task.logits.dtype in KERNEL_TYPES:
        from tiss.losses.triton_backend import fused_cross_entropy

        return fused_cross_entropy
    return chunked


def available_backends() -> dict[str, bool]:
    """The ways that this machine offers, by name.

    >>> available_backends()["plain"], available_backends()["chunked"]
    (True, True)
    """
    return {"plain": True, "chunked": True, "triton": has_triton() and torch.cuda.is_available()}


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether triton is installed; it is imported only when a kernel is launched."""
    return find_spec("triton") is not None


def _problem(task: Task) -> str | None:
    if not task.logits.is_floating_point():
        return "logits are no floating-point numbers"
    if task.teacher is not None and task.teacher.shape[-2:] != task.logits.shape[-2:]:
        return "teacher and student have logits of different size"
    return None


def _pays(task: Task) -> bool:
    """Logits that are nearly at full resolution already leave nothing to save."""
    height, width = task.logits.shape[-2:]
    return task.to.padded[0] * task.to.padded[1] >= 4 * height * width
