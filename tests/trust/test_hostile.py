"""Files that were made to hurt: each ends in one line, within little memory and time."""

from __future__ import annotations

import json
import struct
import tarfile
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.trust.limits import refusal
from tiss.config import ModelConfig
from tiss.data.images import picture_size, read_image, read_mask
from tiss.engine.run_folder import read_config
from tiss.models.build import build_model
from tiss.models.folder import from_pretrained
from tiss.models.pretrained import read_weights
from tiss.scenarios.lists import read_lists

TERABYTE = 1 << 40


@pytest.fixture
def model(tmp_path: Path) -> Path:
    build_model(ModelConfig(encoder="vit_micro_patch8"), ["background", "cat"], 32).save_pretrained(
        tmp_path / "model"
    )
    return tmp_path / "model"


def change(model: Path, **values: Any) -> None:
    """Changes entries of config.json; a dotted name goes one level down."""
    config = json.loads((model / "config.json").read_text())
    for name, value in values.items():
        table = config
        *folders, last = name.split("__")
        for folder in folders:
            table = table[folder]
        table[last] = value
    (model / "config.json").write_text(json.dumps(config))


def test_the_untouched_folder_is_read(model: Path) -> None:
    assert from_pretrained(model).classes == ["background", "cat"]


@pytest.mark.parametrize("claim", ["tensor", "header", "file"])
def test_header_that_claims_terabytes(model: Path, claim: str) -> None:
    entry = {"dtype": "F32", "shape": [TERABYTE // 4], "data_offsets": [0, TERABYTE]}
    header = json.dumps({"head.weight": entry}).encode()
    length = TERABYTE if claim == "header" else len(header)
    path = model / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + header)
    if claim == "file":  # a file that really has that size, of holes
        with open(path, "rb+") as file:
            try:
                file.truncate(8 + len(header) + TERABYTE)
            except OSError:
                pytest.skip("this file system has no files of that size")
    assert "model.safetensors" in refusal(lambda: from_pretrained(model))


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "/etc/passwd", "..", "a\0b", "vit_micro_patch8/../x"]
)
@pytest.mark.parametrize("key", ["encoder", "decoder", "head"])
def test_path_in_the_configuration_that_leaves_the_folder(model: Path, key: str, name: str) -> None:
    change(model, **{f"architecture__{key}": name})
    assert "unknown" in refusal(lambda: from_pretrained(model))


@pytest.mark.parametrize("size", [10**9, -1, 0, 2**70])
def test_image_size_that_claims_terabytes_of_positions(model: Path, size: int) -> None:
    change(model, architecture__image_size=size)
    refusal(lambda: from_pretrained(model))


def test_more_classes_than_there_are_weights(model: Path) -> None:
    names = ["background", *(f"class {number}" for number in range(200_000))]
    change(model, classes=names, groups=[list(range(1, len(names)))])
    refusal(lambda: from_pretrained(model))


@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"a":' * 100_000, "[" * 65 + "]" * 65])
def test_deep_json(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)
    assert "nested deeper" in refusal(lambda: from_pretrained(model))


def test_config_that_is_a_device(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("/dev/zero")
    assert "not a file" in refusal(lambda: from_pretrained(model))


@pytest.mark.parametrize("text", ["a: &a [*a]", "[" * 100_000, "- &a [0]\n" + "- &b [*a, *a]\n" * 3 + "- ["])
def test_run_configuration_that_bites(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert "config.yaml" in refusal(lambda: read_config(tmp_path))


def png(width: int, height: int, data: bytes, depth: int = 8, colour: int = 0) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("read", [read_image, read_mask, picture_size])
@pytest.mark.parametrize(("width", "height"), [(50_000, 50_000), (2**31 - 1, 2**31 - 1), (1, 2**31 - 1)])
def test_image_bomb(tmp_path: Path, read: Any, width: int, height: int) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png(width, height, zlib.compress(bytes(10_000_000))))
    assert "bomb.png" in refusal(lambda: read(path))


def test_picture_that_promises_more_than_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png(4000, 4000, zlib.compress(bytes(100))))
    assert "a.png: broken picture" in refusal(lambda: read_image(path))


@pytest.mark.parametrize(("depth", "colour"), [(1, 0), (8, 2), (8, 6), (16, 0)])
@pytest.mark.parametrize("read", [read_image, read_mask, picture_size])
def test_tall_picture_of_a_few_bytes_is_refused_by_its_header(
    tmp_path: Path, read: Any, depth: int, colour: int
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png(9, 14_347_015, b"", depth, colour))
    start = time.monotonic()
    assert "far less than its 9 × 14347015 pixels" in refusal(lambda: read(path))
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "I;16", "LA"])
def test_an_empty_picture_packed_as_small_as_can_be_is_read(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a.png"
    Image.new(mode, (3000, 3000)).save(path, compress_level=9)
    assert picture_size(path) == (3000, 3000)


def test_picture_that_would_start_another_program(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n")
    assert "not a readable image" in refusal(lambda: read_image(path))


def test_list_that_claims_terabytes(tmp_path: Path) -> None:
    np.save(tmp_path / "train-0.npy", np.arange(8))
    data = (tmp_path / "train-0.npy").read_bytes()
    (tmp_path / "train-0.npy").write_bytes(data.replace(b"(8,), }      ", b"(8000000000,)}"[:13], 1))
    assert "train-0.npy" in refusal(lambda: read_lists(tmp_path, 1, ["a", "b"]))


class Evil:
    """Pickles as a call of `print`; unpickled by anything but a reader of weights alone, it runs."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this must not be printed",))


def test_pickle_needs_permission_and_then_runs_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weights.pth"
    torch.save({"a": Evil()}, path)
    assert "--allow-pickle" in refusal(lambda: read_weights(path, False))
    assert "weights alone" in refusal(lambda: read_weights(path, True))
    assert "must not be printed" not in capfd.readouterr().out


def test_zip_bomb_as_weights(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(4)}, tmp_path / "weights.pth")
    with zipfile.ZipFile(tmp_path / "weights.pth") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "weights.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            with archive.open(name, "w") as file:
                for _ in range(80 if name.endswith("data/0") else 1):  # 800 MB that pack into one
                    file.write(bytes(10 << 20) if name.endswith("data/0") else data)
    assert (tmp_path / "weights.pth").stat().st_size < 2 << 20
    assert "weights.pth" in refusal(lambda: read_weights(tmp_path / "weights.pth", True))


@pytest.mark.parametrize("ending", [".tar", ".zip", ".safetensors", ".pth"])
def test_archive_that_is_no_weights(tmp_path: Path, ending: str) -> None:
    (tmp_path / "zeros").write_bytes(bytes(1 << 20))
    path = tmp_path / f"weights{ending}"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "zeros", "../../zeros")
    assert f"weights{ending}" in refusal(lambda: read_weights(path, True))
