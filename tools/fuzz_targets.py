"""The readers that strangers' files reach, each with small valid files to start from."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TARGETS: dict[str, Target] = {}


@dataclass(frozen=True)
class Target:
    """`read` puts the bytes into a file in a folder of its own and reads it; `seeds` gives valid files."""

    name: str
    kind: str  # how its files are damaged: a key of tools.mutate.KINDS
    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], object]


def target(
    kind: str, seeds: Callable[[], list[bytes]]
) -> Callable[[Callable[[bytes, Path], object]], Target]:
    def add(read: Callable[[bytes, Path], object]) -> Target:
        name = read.__name__.removeprefix("read_")
        TARGETS[name] = Target(name, kind, seeds, read)
        return TARGETS[name]

    return add


def place(data: bytes, folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def some_tensors() -> list[bytes]:
    import torch

    from tiss.files import write_tensors

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        write_tensors(
            path, {"a.weight": torch.ones(2, 3), "b": torch.tensor([True]), "c": torch.tensor(1)}, {"k": "v"}
        )
        return [path.read_bytes()]


@target("json", lambda: [b'{"a": [1, 2.5, "x", null, {"b": true}]}', b"[[[]]]"])
def read_json(data: bytes, folder: Path) -> object:
    from tiss.files import read_json

    return read_json(place(data, folder, "a.json"), max_depth=16)


@target("tensors", some_tensors)
def read_tensors(data: bytes, folder: Path) -> object:
    from tiss.files import read_tensors

    return read_tensors(place(data, folder, "a.safetensors"))


@target("tensors", some_tensors)
def read_expected_tensors(data: bytes, folder: Path) -> object:
    from tiss.files import read_tensors

    expected = {"a.weight": ((2, 3), "float32"), "b": ((1,), "bool"), "c": ((), None)}
    return read_tensors(place(data, folder, "a.safetensors"), expected)


def some_leases() -> list[bytes]:
    holder = {"host": "a", "machine": "MACHINE", "pid": 1, "started": "1", "token": "x"}
    return [json.dumps(holder).encode(), json.dumps(holder | {"machine": "b"}).encode()]


@target("json", some_leases)
def read_lease(data: bytes, folder: Path) -> object:
    from tiss.lock import Lease, _machine

    data = data.replace(b"MACHINE", _machine().encode())
    lease = Lease(place(data, folder, "lease.json"))
    lease.acquire()
    lease.release()
    return True
