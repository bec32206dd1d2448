import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiss import files
from tiss.errors import TissError
from tiss.files import memory

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
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.contiguous().view(-1).view(torch.uint8).equal(b.contiguous().view(-1).view(torch.uint8))
    )


def craft(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def test_round_trip_and_the_format_of_everyone_else(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    files.write_tensors(ours, TENSORS, {"b": "2", "a": "1"})
    safetensors.torch.save_file({k: v.contiguous() for k, v in TENSORS.items()}, theirs, {"a": "1", "b": "2"})
    for loaded in (files.read_tensors(ours), files.read_tensors(theirs), safetensors.torch.load_file(ours)):
        assert loaded.keys() == TENSORS.keys()
        assert all(same(loaded[name], TENSORS[name]) for name in TENSORS)
    assert files.tensor_metadata(ours) == {"a": "1", "b": "2"}
    assert files.tensor_shapes(ours)["half"] == ((2, 3), "bfloat16")


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
    assert str(caught.value) == (
        f"{path}: does not fit this model; missing 1: d; unexpected 1: c; "
        "different 2: a is 2×3 instead of 2×4, b is float32 instead of float64"
    )
    fitting = {"a": ((2, 3), torch.float32), "b": ((1,), None), "c": ((4,), "float32")}
    assert files.read_tensors(path, fitting).keys() == fitting.keys()


def test_names_with_line_breaks_stay_on_one_line(tmp_path: Path) -> None:
    files.write_tensors(tmp_path / "a", {"a\nb": torch.zeros(1)})
    with pytest.raises(TissError) as caught:
        files.read_tensors(tmp_path / "a", {})
    assert "\n" not in str(caught.value)


def test_limit_of_bytes(tmp_path: Path) -> None:
    files.write_tensors(tmp_path / "a", {"a": torch.zeros(100)})
    with pytest.raises(TissError, match="400 bytes of tensors, more than the 399"):
        files.read_tensors(tmp_path / "a", max_bytes=399)


def test_file_of_holes_larger_than_memory(tmp_path: Path) -> None:
    size = 1 << 42
    path = craft(tmp_path / "a", {"a": entry([size], 0, size, "U8")})
    try:
        os.truncate(path, path.stat().st_size + size)
    except OSError:
        pytest.skip("this file system has no files of that size")
    for limit in (None, 1 << 50):  # a limit above the memory does not lift the memory's own
        with pytest.raises(TissError, match=r"4,398,046,511,104 bytes of tensors, more than there is memory"):
            files.read_tensors(path, max_bytes=limit)


def test_a_container_has_less_memory_than_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = craft(tmp_path / "a", {"a": entry([100], 0, 400)}, bytes(400))
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    for text, fits in (("max\n", True), ("400\n", True), ("399\n", False)):
        limit.write_text(text)
        if fits:
            assert len(files.read_tensors(path)["a"]) == 100
        else:
            with pytest.raises(TissError, match="more than there is memory"):
                files.read_tensors(path)


def entry(shape: Any, begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BAD_HEADERS: list[tuple[Any, bytes, str]] = [
    ({"a": entry([1 << 40], 0, 1 << 42)}, bytes(8), "cut short"),
    ({"a": entry([2], 0, 4)}, bytes(4), "does not fit its bytes"),
    ({"a": entry([1 << 62, 4], 0, 0)}, b"", "does not fit its bytes"),
    ({"a": entry([-1], 0, 4)}, bytes(4), "bad shape"),
    ({"a": entry([1.0], 0, 4)}, bytes(4), "bad shape"),
    ({"a": entry([True], 0, 4)}, bytes(4), "bad shape"),
    ({"a": entry([1], -4, 0)}, bytes(4), "bad shape"),
    ({"a": entry("1", 0, 4)}, bytes(4), "bad shape"),
    ({"a": entry([1] * 65, 0, 4)}, bytes(4), "bad shape"),
    ({"a": entry([1], 0, 4, "F128")}, bytes(4), "unknown dtype"),
    ({"a": entry([1], 0, 4, ["F32"])}, bytes(4), "unknown dtype"),
    ({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, bytes(4), "overlaps or leaves a gap"),
    ({"a": entry([1], 4, 8)}, bytes(8), "overlaps or leaves a gap"),
    ({"a": entry([1], 0, 4)}, bytes(5), "cut short"),
    ({"a": [1]}, b"", "must have dtype"),
    ({"a": {"dtype": "F32", "shape": [1]}}, b"", "must have dtype"),
    ({"__metadata__": {"a": 1}}, b"", "must map words to words"),
    ([], b"", "no table"),
    (b"{", b"", "bad JSON"),
    (b"[" * 5000, b"", "deeper than"),
]


@pytest.mark.parametrize(("header", "data", "message"), BAD_HEADERS)
def test_bad_headers_end_in_one_line(tmp_path: Path, header: Any, data: bytes, message: str) -> None:
    path = craft(tmp_path / "model.safetensors", header, data)
    for read in (files.read_tensors, files.tensor_shapes, files.tensor_metadata):
        with pytest.raises(TissError, match=message) as caught:
            read(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("length", [1 << 63, 1 << 40, 200 << 20, 30])
def test_header_length_beyond_the_file(tmp_path: Path, length: int) -> None:
    with pytest.raises(TissError, match="its header does not fit"):
        files.read_tensors(craft(tmp_path / "a", {}, b"", length))


@pytest.mark.parametrize("size", [0, 7])
def test_file_shorter_than_its_prefix(tmp_path: Path, size: int) -> None:
    (tmp_path / "a").write_bytes(bytes(size))
    with pytest.raises(TissError, match="not a safetensors file"):
        files.read_tensors(tmp_path / "a")


def test_bytes_that_are_no_truth_value(tmp_path: Path) -> None:
    path = craft(tmp_path / "a", {"a": entry([2], 0, 2, "BOOL")}, b"\x01\x02")
    with pytest.raises(TissError, match="neither true nor false"):
        files.read_tensors(path)


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.integers(0, 10_000))
def test_one_changed_byte_or_a_cut_never_surprises(
    tmp_path_factory: pytest.TempPathFactory, position: int, byte: int, cut: int
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "a"
    files.write_tensors(path, {name: TENSORS[name] for name in ("encoder.weight", "mask")}, {"a": "1"})
    data = bytearray(path.read_bytes())
    data[position % len(data)] = byte
    path.write_bytes(data[: len(data) - cut % 20])
    try:
        files.read_tensors(path)
    except TissError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message
