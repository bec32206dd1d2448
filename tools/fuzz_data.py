"""Fuzz targets for pictures, masks, lists, class lists and colour maps."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tools.fuzz_targets import TARGETS, Target, place, target


def pictures(kind: str) -> Callable[[], list[bytes]]:
    """Valid pictures of a few pixels, in every mode that `kind` of file can have."""

    def make() -> list[bytes]:
        from PIL import Image

        modes = {
            "png": [
                ("L", "PNG"),
                ("P", "PNG"),
                ("RGB", "PNG"),
                ("RGBA", "PNG"),
                ("I;16", "PNG"),
                ("1", "PNG"),
            ],
            "other": [
                ("RGB", "JPEG"),
                ("L", "JPEG"),
                ("CMYK", "JPEG"),
                ("RGB", "BMP"),
                ("P", "GIF"),
                ("RGB", "TIFF"),
            ],
        }[kind]
        found = []
        for mode, container in modes:
            image = Image.linear_gradient("L").resize((9, 7))
            image = Image.frombytes(mode, (9, 7), bytes(126)) if mode == "I;16" else image.convert(mode)
            exif = Image.Exif()
            exif[0x0112] = 6
            buffer = io.BytesIO()
            image.save(buffer, container, **({"exif": exif} if container in ("JPEG", "PNG") else {}))
            found.append(buffer.getvalue())
        return found

    return make


@target("png", pictures("png"))
def read_mask(data: bytes, folder: Path) -> object:
    from tiss.data.images import load_mask

    return load_mask(place(data, folder, "a.png"))


@target("png", pictures("png"))
def read_coloured_mask(data: bytes, folder: Path) -> object:
    from tiss.data.images import load_mask

    return load_mask(place(data, folder, "a.png"), {(0, 0, 0): 0, (255, 255, 255): 1})


@target("png", pictures("png"))
def read_picture(data: bytes, folder: Path) -> object:
    from tiss.data.images import check_whole, picture_size, read_image

    path = place(data, folder, "a.png")
    picture_size(path)
    check_whole(path)
    return read_image(path)


@target("bytes", pictures("other"))
def read_other_picture(data: bytes, folder: Path) -> object:
    from tiss.data.images import check_whole, read_image

    path = place(data, folder, "a.jpg")
    check_whole(path)
    return read_image(path)


@target(
    "lines", lambda: [b"2007_000032\n2007_000039\n", b"/JPEGImages/a.jpg /SegmentationClass/a.png\n\n b c\n"]
)
def read_list(data: bytes, folder: Path) -> object:
    from tiss.data.paired import read_list

    return read_list(place(data, folder, "train.txt"))


def class_files(suffix: str, seeds: list[bytes], kind: str) -> None:
    def read(data: bytes, folder: Path) -> object:
        from tiss.data.classes import read_classes

        place(data, folder, f"classes.{suffix}")
        return read_classes(folder)

    TARGETS[f"classes_{suffix}"] = Target(f"classes_{suffix}", kind, lambda: seeds, read)


class_files("txt", [b"background\ncat\ndog\n", b"# mine\ncat\n\ndog"], "lines")
class_files("json", [b'{"classes": ["cat", "dog"], "background": true}', b'["cat"]'], "json")
class_files("yaml", [b"classes: [cat, dog]\nbackground: true\n", b"- cat\n- dog\n"], "lines")


@target("lines", lambda: [b"background 0 0 0\ncat 128 0 0\nblack dog 0,128,0\n# void 255 255 255\n"])
def read_colours(data: bytes, folder: Path) -> object:
    from tiss.data.classes import read_colours

    return read_colours(place(data, folder, "colours.txt"))


IDS = [f"2007_{number:06}" for number in range(20)]


def some_arrays() -> list[bytes]:
    found = []
    for array in (np.arange(5), np.array([3, 1], dtype=np.uint8), np.array([[1, 2]]), np.array([0.5])):
        buffer = io.BytesIO()
        np.save(buffer, array)
        found.append(buffer.getvalue())
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.arange(5))
    return [*found, buffer.getvalue()]


def training_lists(suffix: str, seeds: Callable[[], list[bytes]], kind: str) -> None:
    def read(data: bytes, folder: Path) -> object:
        from tiss.scenarios.lists import read_lists

        place(data, folder, f"train-0.{suffix}")
        return read_lists(folder, 1, IDS)

    TARGETS[f"training_list_{suffix}"] = Target(f"training_list_{suffix}", kind, seeds, read)


training_lists("npy", some_arrays, "bytes")
training_lists("txt", lambda: ["\n".join(IDS[:3]).encode(), b"3\n1\n2\n"], "lines")
