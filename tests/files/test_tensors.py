import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tiss import files
from tiss.errors import SpaceError, TissError

TENSORS = {
    "encoder.weight": torch.randn(3, 4),
    "count": torch.tensor(7),
    "empty": torch.zeros(0, 5),
    "half": torch.randn(2, 3).bfloat16(),
    "mask": torch.tensor([True, False, True]),
    "turned": torch.randn(4, 6).t(),
    "small": torch.randn(5).to(torch.float8_e4m3fn),
}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    bits = [one.contiguous().view(-1).view(torch.uint8) for one in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)


def craft(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def test_round_trip_and_the_format_of_everyone_else(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    files.write_tensors(ours, TENSORS, {"format": "pt"})
    safetensors.torch.save_file({k: v.contiguous() for k, v in TENSORS.items()}, theirs, {"format": "pt"})
    for loaded in (files.read_tensors(ours), files.read_tensors(theirs), safetensors.torch.load_file(ours)):
        assert loaded.keys() == TENSORS.keys()
        assert all(same(loaded[name], TENSORS[name]) for name in TENSORS)


def test_tensors_that_share_memory(tmp_path: Path) -> None:
    whole = torch.arange(10)
    files.write_tensors(tmp_path / "a", {"whole": whole, "part": whole[3:]})
    assert files.read_tensors(tmp_path / "a")["part"].equal(whole[3:])


def test_a_full_disk_is_named(tmp_path: Path, small_files: None) -> None:
    with pytest.raises(SpaceError, match=r"model: .*free some space"):
        files.write_tensors(tmp_path / "model", {"a": torch.zeros(5000)})
    assert list(tmp_path.iterdir()) == []


def test_equal_tensors_give_equal_files(tmp_path: Path) -> None:
    files.write_tensors(tmp_path / "a", TENSORS)
    files.write_tensors(tmp_path / "b", dict(reversed(TENSORS.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_does_not_fit_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    files.write_tensors(path, {"a": torch.zeros(2, 3), "b": torch.zeros(1), "c": torch.zeros(4)})
    expected = {"a": ((2, 4), torch.float32), "b": ((1,), "float64"), "d": ((1,), None)}
    with pytest.raises(TissError) as caught:
        files.read_tensors(path, expected)
    parts = ("missing 1: d", "unexpected 1: c", "a is 2×3 float32 instead of 2×4", "different 2")
    assert all(part in str(caught.value) for part in (str(path), *parts))
    fitting = {"a": ((2, 3), torch.float32), "b": ((1,), None), "c": ((4,), "float32")}
    assert files.read_tensors(path, fitting).keys() == fitting.keys()


def test_file_of_holes_larger_than_memory(tmp_path: Path) -> None:
    size = 1 << 42
    path = craft(tmp_path / "a", {"a": entry([size], 0, size, "U8")})
    try:
        os.truncate(path, path.stat().st_size + size)
    except OSError:
        pytest.skip("this file system has no files of that size")
    with pytest.raises(TissError, match="too large"):
        files.read_tensors(path)


def entry(shape: Any, begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BAD_HEADERS: list[tuple[Any, bytes]] = [
    ({"a": entry([1 << 40], 0, 1 << 42)}, bytes(8)),
    ({"a": entry([2], 0, 4)}, bytes(4)),
    ({"a": entry([1 << 62, 4], 0, 0)}, b""),
    ({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, bytes(4)),
    ({"a": entry([1], 0, 4)}, bytes(5)),
    ({"a": entry([1], 0, 4)}, bytes(3)),
    ({"a": [1]}, b""),
    (b"[" * 5000, b""),
]


@pytest.mark.parametrize(("header", "data"), BAD_HEADERS)
def test_bad_headers_end_in_one_line(tmp_path: Path, header: Any, data: bytes) -> None:
    path = craft(tmp_path / "model.safetensors", header, data)
    with pytest.raises(TissError, match=r"model\.safetensors: not a safetensors file, or"):
        files.read_tensors(path)
