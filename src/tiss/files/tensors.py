"""Tensors in the safetensors format; the header is checked by hand before a byte is allocated for it.

A file is eight bytes with the header's length (little-endian), the header (JSON: name → dtype, shape, and
begin and end of the data), then the data without gaps.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from tiss.errors import TissError
from tiss.files.atomic import write_chunks
from tiss.files.memory import total_memory
from tiss.files.reading import JSON_BYTES, open_regular, parse_json

if TYPE_CHECKING:
    import torch

HEADER_BYTES = JSON_BYTES  # the format allows 100 MB; a model of 100,000 tensors needs 15
METADATA = "__metadata__"

# The format's name of a dtype: torch's name and the bytes of one item.
DTYPES: dict[str, tuple[str, int]] = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
    "C64": ("complex64", 8),
}
_CODES = {torch_name: (code, size) for code, (torch_name, size) in DTYPES.items()}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Entry:
    """Where one tensor lies: dtype by torch's name, begin and end counted from the first byte of data."""

    dtype: str
    shape: Shape
    begin: int
    end: int


@dataclass(frozen=True)
class _Header:
    entries: dict[str, _Entry]
    metadata: dict[str, str]
    data_start: int


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes tensors by name, whole or not at all; equal tensors give an equal file."""
    header: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    # Wide items first keep every tensor aligned to its item size.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    position = 0
    for name in names:
        tensor = tensors[name]
        code, size = _CODES[_dtype_name(tensor.dtype)]
        end = position + tensor.numel() * size
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)

    def chunks() -> Iterator[bytes | memoryview]:
        yield struct.pack("<Q", len(text)) + text
        for name in names:
            yield _raw(tensors[name].detach().cpu().contiguous())

    write_chunks(path, chunks())


def read_tensors(
    path: str | os.PathLike[str],
    expected: Mapping[str, tuple[Shape, torch.dtype | str | None]] | None = None,
    device: torch.device | str = "cpu",
    max_bytes: int | None = None,
) -> dict[str, torch.Tensor]:
    """Tensors by name, in the file's order.

    With `expected` (name → shape, dtype; dtype None takes any) a file that differs is refused with a list of
    what is missing, unexpected or of another shape, before anything is allocated. `max_bytes` sets a limit
    below what the machine's memory holds.
    """
    with open_regular(path) as file:
        header = _read_header(file, str(path))
        if expected is not None:
            _compare(header.entries, expected, str(path))
        total = sum(entry.end - entry.begin for entry in header.entries.values())
        if max_bytes is not None and total > max_bytes:
            raise TissError(f"{path}: {total:,} bytes of tensors, more than the {max_bytes:,} allowed")
        if total > total_memory():  # asking for it is no test: many systems promise more than they have
            raise TissError(f"{path}: {total:,} bytes of tensors, more than there is memory")
        loaded = {name: _load(file, header, name, str(path)) for name in header.entries}
    return {name: tensor.to(device) for name, tensor in loaded.items()}


def tensor_shapes(path: str | os.PathLike[str]) -> dict[str, tuple[Shape, str]]:
    """Shape and dtype (torch's name, "float32") of every tensor, from the header alone."""
    with open_regular(path) as file:
        header = _read_header(file, str(path))
    return {name: (entry.shape, entry.dtype) for name, entry in header.entries.items()}


def tensor_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The words that `write_tensors` was given beside the tensors."""
    with open_regular(path) as file:
        return _read_header(file, str(path)).metadata


def _read_header(file: BinaryIO, where: str) -> _Header:
    """Reads the header and checks that it describes this very file: every byte once, sizes that add up."""
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
    if length > min(HEADER_BYTES, size - 8):
        raise TissError(f"{where}: not a safetensors file, or cut short: its header does not fit")
    value = parse_json(file.read(length), where)
    if not isinstance(value, dict):
        raise TissError(f"{where}: not a safetensors file: its header is no table")
    metadata = value.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise TissError(f"{where}: bad safetensors header: {METADATA} must map words to words")
    entries = {name: _read_entry(entry, name, where) for name, entry in value.items()}
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            raise TissError(
                f"{where}: bad safetensors header: data of {name[:200]!r} overlaps or leaves a gap"
            )
        position = entry.end
    if position != size - 8 - length:
        raise TissError(
            f"{where}: broken or cut short: its header describes {position:,} bytes of data, "
            f"the file has {size - 8 - length:,}"
        )
    return _Header(entries, metadata, 8 + length)


def _read_entry(value: Any, name: str, where: str) -> _Entry:
    def natural(numbers: Any) -> bool:
        return isinstance(numbers, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in numbers)

    problem = f"{where}: bad safetensors header: tensor {name[:200]!r} "
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise TissError(problem + "must have dtype, shape and data_offsets")
    shape, offsets = value["shape"], value["data_offsets"]
    if not isinstance(value["dtype"], str) or value["dtype"] not in DTYPES:
        raise TissError(problem + f"has the unknown dtype {str(value['dtype'])[:40]!r}")
    if not natural(shape) or not natural(offsets) or len(offsets) != 2 or len(shape) > 64:
        raise TissError(problem + "has a bad shape or bad offsets")
    dtype, size = DTYPES[value["dtype"]]
    if offsets[1] - offsets[0] != math.prod(shape) * size:
        raise TissError(problem + "has a shape that does not fit its bytes")
    return _Entry(dtype, tuple(shape), offsets[0], offsets[1])


def _compare(
    found: Mapping[str, _Entry], expected: Mapping[str, tuple[Shape, torch.dtype | str | None]], where: str
) -> None:
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    other = []
    for name, (shape, dtype) in expected.items():
        if name in found:
            entry = found[name]
            if entry.shape != tuple(shape):
                other.append(f"{name} is {_by(entry.shape)} instead of {_by(tuple(shape))}")
            elif dtype is not None and entry.dtype != _dtype_name(dtype):
                other.append(f"{name} is {entry.dtype} instead of {_dtype_name(dtype)}")
    parts = [
        f"{word} {len(names)}: {_listed(names)}"
        for word, names in (("missing", missing), ("unexpected", unexpected), ("different", other))
        if names
    ]
    if parts:
        raise TissError(f"{where}: does not fit this model; " + "; ".join(parts))


def _by(shape: Shape) -> str:
    return "×".join(map(str, shape)) or "a single value"


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(name[:200] if name.isprintable() else repr(name[:200]) for name in names[:most]) + (
        ", …" if len(names) > most else ""
    )


def _dtype_name(dtype: torch.dtype | str) -> str:
    return str(dtype).removeprefix("torch.")


def _raw(tensor: torch.Tensor) -> memoryview:
    """A contiguous tensor's bytes, without a copy."""
    import torch

    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def _load(file: BinaryIO, header: _Header, name: str, where: str) -> torch.Tensor:
    import torch

    entry = header.entries[name]
    try:
        tensor = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
    except (RuntimeError, MemoryError) as error:
        size = entry.end - entry.begin
        raise TissError(
            f"{where}: {size:,} bytes for {name[:200]!r} are more than there is memory left"
        ) from error
    raw = _raw(tensor)
    file.seek(header.data_start + entry.begin)
    if len(raw) and file.readinto(raw) != len(raw):  # type: ignore[attr-defined]
        raise TissError(f"{where}: cut short while it was read")
    if entry.dtype == "bool" and bool((tensor.view(torch.uint8) > 1).any()):
        raise TissError(f"{where}: {name[:200]!r} holds bytes that are neither true nor false")
    return tensor
