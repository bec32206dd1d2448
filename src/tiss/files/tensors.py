"""Tensors in safetensors files: written whole or not at all; names, shapes and dtypes are checked before use."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tiss.errors import TissError, listed
from tiss.files.atomic import PathLike, replacing
from tiss.files.reading import open_regular

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]
Expected = Mapping[str, tuple[Shape, "torch.dtype | str | None"]]


def write_tensors(
    path: PathLike, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes tensors by name; equal tensors give equal files (with at most one entry of `metadata`)."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # copies, since the library refuses tensors that share memory
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        try:
            save_file(copies, temporary, dict(metadata) if metadata else None)
        except SafetensorError as error:
            number = re.search(r"(?:os error|code:) (\d+)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def read_tensors(path: PathLike, expected: Expected | None = None) -> dict[str, torch.Tensor]:
    """Tensors by name. With `expected` (name → shape, dtype; dtype None takes any), a file that differs is refused.

    The error lists what is missing, unexpected or different, before anything is allocated.
    """
    from safetensors import SafetensorError, safe_open

    try:  # the library checks that the header describes every byte of the file once
        with open_regular(path), safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - still in the file
            if expected is not None:
                _compare(tensors, expected, path)
            return {name: tensor.clone() for name, tensor in tensors.items()}
    except (SafetensorError, RuntimeError, MemoryError, AttributeError) as error:
        raise TissError(
            f"{path}: not a safetensors file, or broken, cut short or too large: {error}"
        ) from error


def _compare(tensors: Mapping[str, torch.Tensor], expected: Expected, path: PathLike) -> None:
    problems: dict[str, list[str]] = {
        "missing": sorted(expected.keys() - tensors.keys()),
        "unexpected": sorted(tensors.keys() - expected.keys()),
        "different": [],
    }
    for name in sorted(expected.keys() & tensors.keys()):
        tensor, (shape, dtype) = tensors[name], expected[name]
        found, wanted = _form(tensor.shape, tensor.dtype), _form(shape, dtype or tensor.dtype)
        if found != wanted:
            problems["different"].append(f"{name} is {found} instead of {wanted}")
    parts = [f"{word} {len(names)}: {listed(names, 8)}" for word, names in problems.items() if names]
    if parts:
        raise TissError(f"{path}: does not fit this model; {'; '.join(parts)}")


def _form(shape: Shape, dtype: torch.dtype | str) -> str:
    return f"{'×'.join(map(str, shape)) or 'a single'} {str(dtype).removeprefix('torch.')}"
