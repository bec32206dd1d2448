"""Files that were made to hurt: each ends in one line, within little memory and time."""

import io
import json
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.stress.damage import png
from tests.stress.limits import refusal
from tests.stress.readers import MODEL, place
from tiss.data.images import image_size, load_mask, read_image
from tiss.models import from_pretrained
from tiss.models.pretrained import read_weights
from tiss.scenarios import read_lists

TERABYTE = 1 << 40
CLAIM = json.dumps({"head.weight": {"dtype": "F32", "shape": [TERABYTE // 4], "data_offsets": [0, TERABYTE]}})
PARTS = ("encoder", "decoder", "head")
PATHS = ("../../../etc/passwd", "/etc/passwd", "..", "a\0b", "vit_micro_patch8/../x")
MANY = ["background", *(f"class {number}" for number in range(200_000))]


def changed(architecture: dict[str, Any] | None = None, **entries: Any) -> bytes:
    """A model's config.json with other entries."""
    config = json.loads(MODEL["config.json"])
    config["architecture"] |= architecture or {}
    return json.dumps(config | entries).encode()


MODELS = [
    ("model.safetensors", lambda: struct.pack("<Q", len(CLAIM)) + CLAIM.encode(), "model.safetensors"),
    ("model.safetensors", lambda: struct.pack("<Q", TERABYTE) + CLAIM.encode(), "model.safetensors"),
    *(("config.json", partial(changed, {key: name}), "unknown") for key, name in product(PARTS, PATHS)),
    *(("config.json", partial(changed, {"image_size": size}), "") for size in (10**9, -1, 0, 2**70)),
    ("config.json", lambda: changed(classes=MANY, groups=[list(range(1, len(MANY)))]), ""),
    ("config.json", lambda: b"[" * 1_000_000, "nested"),
    ("config.json", lambda: b'{"a":' * 100_000, "nested"),
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name, data in MODEL.items():
        place(data, tmp_path, name)
    return tmp_path


@pytest.mark.parametrize(("name", "data", "word"), MODELS, ids=range(len(MODELS)))
def test_model_folder(model: Path, name: str, data: Callable[[], bytes], word: str) -> None:
    place(data(), model, name)
    assert word in refusal(lambda: from_pretrained(model))


def test_weights_of_a_terabyte_of_holes(model: Path) -> None:
    with open(model / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(CLAIM)) + CLAIM.encode())
        file.truncate(8 + len(CLAIM) + TERABYTE)
    assert "model.safetensors" in refusal(lambda: from_pretrained(model))


def test_configuration_that_is_a_device(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("/dev/zero")
    assert "not a file" in refusal(lambda: from_pretrained(model))


def image(width: int, height: int, data: bytes, depth: int = 8, colour: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return png((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))


BOMB = zlib.compress(bytes(10_000_000))
IMAGES = [
    *(image(*size, BOMB) for size in ((50_000, 50_000), (2**31 - 1, 2**31 - 1), (1, 2**31 - 1))),
    *(image(9, 14_347_015, b"", *kind) for kind in ((1, 0), (8, 2), (8, 6), (16, 0))),  # tall, of a few bytes
    image(4000, 4000, zlib.compress(bytes(100))),  # holds less than it promises
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n",  # would start another program
]


@pytest.mark.parametrize("read", [read_image, load_mask, image_size])
@pytest.mark.parametrize("data", IMAGES, ids=range(len(IMAGES)))
def test_image(tmp_path: Path, read: Callable[[Path], object], data: bytes) -> None:
    path, start = place(data, tmp_path, "a.png"), time.monotonic()
    assert "a.png" in refusal(lambda: read(path))
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "I;16", "LA"])
def test_an_empty_image_packed_as_small_as_can_be_is_read(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (3000, 3000)).save(tmp_path / "a.png", compress_level=9)
    assert image_size(tmp_path / "a.png") == (3000, 3000)


def test_list_that_claims_terabytes(tmp_path: Path) -> None:
    path = tmp_path / "train-0.npy"
    np.save(path, np.arange(8))
    path.write_bytes(path.read_bytes().replace(b"(8,), }      ", b"(8000000000,)}"[:13], 1))
    assert "train-0.npy" in refusal(lambda: read_lists(tmp_path, 1, ["a", "b"]))


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


class Evil:
    """Pickles as a call of `print`; unpickled by anything but a reader of weights alone, it runs."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this must not be printed",))


def test_pickle_needs_permission_and_runs_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = place(saved({"a": Evil()}), tmp_path, "weights.pth")
    for allowed in (False, True):
        assert "weights" in refusal(lambda: read_weights(path, allowed))  # noqa: B023 - called at once
    assert "must not be printed" not in capfd.readouterr().out


def test_zip_bomb_as_weights(tmp_path: Path) -> None:
    path = place(saved({"a": torch.zeros(4)}), tmp_path, "weights.pth")
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            with archive.open(name, "w") as file:
                for _ in range(80 if name.endswith("data/0") else 1):  # 800 MB that pack into one
                    file.write(bytes(10 << 20) if name.endswith("data/0") else data)
    assert path.stat().st_size < 2 << 20
    assert "weights.pth" in refusal(lambda: read_weights(path, True))


@pytest.mark.parametrize("ending", [".tar", ".zip", ".safetensors", ".pth"])
def test_archive_that_is_no_weights(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"weights{ending}"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(place(bytes(1 << 20), tmp_path, "zeros"), "../../zeros")
    assert path.name in refusal(lambda: read_weights(path, True))
