"""Files that are whole or not there at all, and readers that trust nothing."""

from __future__ import annotations

from tiss.files.atomic import (
    append_line,
    atomic_folder,
    clean_strays,
    make_folder,
    recover,
    sync_file,
    truncate_to,
    write_bytes,
    write_json,
    write_text,
)
from tiss.files.phase import doing, mark
from tiss.files.reading import inside, open_regular, read_bytes, read_json, read_text, read_yaml
from tiss.files.room import existing, reserve
from tiss.files.tensors import read_tensors, tensor_metadata, tensor_shapes, write_tensors

__all__ = [
    "append_line",
    "atomic_folder",
    "clean_strays",
    "doing",
    "existing",
    "inside",
    "make_folder",
    "mark",
    "open_regular",
    "read_bytes",
    "read_json",
    "read_tensors",
    "read_text",
    "read_yaml",
    "recover",
    "reserve",
    "sync_file",
    "tensor_metadata",
    "tensor_shapes",
    "truncate_to",
    "write_bytes",
    "write_json",
    "write_tensors",
    "write_text",
]
