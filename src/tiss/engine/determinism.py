"""The same numbers twice on a GPU: what is switched on for it, and what happens where that cannot be had."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import torch

from tiss.errors import TissError

WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def make_deterministic(device: torch.device | str) -> None:
    """From here on every operation gives the same numbers each time, or is an error (on a GPU).

    cuBLAS reads its setting when it starts, so this comes before the first product. Compiled kernels must not be
    chosen by timing them: another choice adds in another order.
    """
    os.environ.setdefault(*WORKSPACE)
    kind = torch.device(device).type
    if kind == "cuda":
        import_module("torch._inductor.config").deterministic = True  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=kind != "cuda")


@contextmanager
def deterministic(device: torch.device | str) -> Iterator[None]:
    """The same for a while."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    make_deterministic(device)
    try:
        with refusals_explained():
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        if torch.device(device).type == "cuda":
            import_module("torch._inductor.config").deterministic = before[0]  # type: ignore[attr-defined]


@contextmanager
def refusals_explained() -> Iterator[None]:
    """Turns torch's refusal of an operation that has no deterministic form into one line with a remedy."""
    try:
        yield
    except RuntimeError as error:
        if "use_deterministic_algorithms" not in str(error):
            raise
        reason = str(error).split(". ")[0]
        raise TissError(
            f"--train.deterministic true: {reason}; set it to false, or take another --method or --model.encoder"
        ) from error
