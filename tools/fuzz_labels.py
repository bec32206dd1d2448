"""Fuzz targets for other tools' labels and for archives; each is read and written out as a data set."""

from __future__ import annotations

import base64
import io
import json
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

from PIL import Image

from tools.fuzz_data import pictures
from tools.fuzz_targets import place, target


def picture() -> bytes:
    """A PNG of 9 × 7 pixels in colour."""
    buffer = io.BytesIO()
    Image.new("RGB", (9, 7), (200, 100, 50)).save(buffer, "PNG")
    return buffer.getvalue()


def convert(kind: str, source: Path, folder: Path) -> object:
    """Reads labels of another tool and writes them as a `folder` data set, which is then thrown away."""
    from tiss.data.convert import CONVERTERS, Options, write_folder

    out = folder / "converted"
    try:
        return write_folder(CONVERTERS[kind](source, None), out, Options(test_share=0.0))
    finally:
        shutil.rmtree(out, ignore_errors=True)


def encode(document: Any) -> bytes:
    return json.dumps(document).encode()


def some_coco() -> list[bytes]:
    segmentations: list[Any] = [
        [[1, 1, 5, 1, 5, 5, 1, 5], [0.5, 0.5, 8.5, 0.5, 4, 6.5]],
        {"size": [7, 9], "counts": [10, 5, 48]},
        {"size": [7, 9], "counts": ":5`1"},
        [],
    ]
    annotations = [
        {"id": n, "image_id": 1, "category_id": 1 + n % 2, "iscrowd": 0, "segmentation": shape}
        for n, shape in enumerate(segmentations)
    ]
    images = [{"id": 1, "file_name": "a.png", "width": 9, "height": 7}]
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    whole = {"images": images, "categories": categories, "annotations": annotations[:2]}
    return [encode(whole), *(encode(whole | {"annotations": [item]}) for item in annotations)]


@target("json", some_coco)
def read_coco(data: bytes, folder: Path) -> object:
    place(picture(), folder, "a.png")
    return convert("coco", place(data, folder, "instances.json"), folder)


def some_labelme() -> list[bytes]:
    stamp = base64.b64encode(pictures("png")()[5]).decode()
    shapes: list[dict[str, Any]] = [
        {"label": "cat", "shape_type": "polygon", "points": [[1, 1], [5, 1], [5, 5]]},
        {"label": "dog", "shape_type": "rectangle", "points": [[0, 0], [4.5, 3]]},
        {"label": "cat", "shape_type": "circle", "points": [[4, 4], [6, 4]]},
        {"label": "dog", "shape_type": "mask", "points": [[0, 0], [8, 6]], "mask": stamp},
        {"label": "dog", "shape_type": "line", "points": [[0, 0], [8, 6]]},
    ]
    whole = {"imagePath": "a.png", "imageWidth": 9, "imageHeight": 7, "imageData": None, "shapes": shapes}
    return [encode(whole), *(encode(whole | {"shapes": [shape]}) for shape in shapes[:4])]


@target("json", some_labelme)
def read_labelme(data: bytes, folder: Path) -> object:
    place(picture(), folder, "labels/a.png")
    place(data, folder, "labels/a.json")
    return convert("labelme", folder / "labels", folder)


def some_supervisely() -> list[bytes]:
    bitmap = base64.b64encode(zlib.compress(pictures("png")()[3])).decode()
    ring = {"exterior": [[1, 1], [7, 1], [7, 5]], "interior": [[[3, 2], [5, 2], [5, 3]]]}
    objects: list[dict[str, Any]] = [
        {"classTitle": "cat", "geometryType": "polygon", "points": ring},
        {"classTitle": "dog", "geometryType": "bitmap", "bitmap": {"data": bitmap, "origin": [0, 0]}},
        {"classTitle": "dog", "geometryType": "rectangle", "points": ring | {"interior": []}},
    ]
    whole = {"size": {"width": 9, "height": 7}, "objects": objects}
    return [encode(whole), *(encode(whole | {"objects": [item]}) for item in objects)]


@target("json", some_supervisely)
def read_supervisely(data: bytes, folder: Path) -> object:
    place(b'{"classes": [{"title": "cat"}, {"title": "dog"}]}', folder, "project/meta.json")
    place(picture(), folder, "project/set/img/a.png")
    place(data, folder, "project/set/ann/a.png.json")
    return convert("supervisely", folder / "project", folder)


@target("json", lambda: [b'{"classes": [{"title": "cat"}, {"title": "dog"}]}'])
def read_supervisely_meta(data: bytes, folder: Path) -> object:
    place(data, folder, "project/meta.json")
    place(picture(), folder, "project/set/img/a.png")
    place(some_supervisely()[1], folder, "project/set/ann/a.png.json")
    return convert("supervisely", folder / "project", folder)


@target("lines", lambda: [b"# label:color_rgb:parts:actions\nbackground:0,0,0::\ncat:255,255,255::\n"])
def read_cvat(data: bytes, folder: Path) -> object:
    place(data, folder, "export/labelmap.txt")
    place(picture(), folder, "export/JPEGImages/a.png")
    place(pictures("png")()[5], folder, "export/SegmentationClass/a.png")
    return convert("cvat", folder / "export", folder)


def some_tars() -> list[bytes]:
    found = []
    for mode in ("w", "w:gz"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
            for name in ("a/b.txt", "c.txt"):
                member = tarfile.TarInfo(name)
                member.size = 5
                archive.addfile(member, io.BytesIO(b"12345"))
        found.append(buffer.getvalue())
    return found


def some_zips() -> list[bytes]:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b.txt", "12345" * 20)
        archive.writestr("c.txt", "")
    return [buffer.getvalue()]


@target("bytes", lambda: [*some_tars(), *some_zips()])
def read_archive(data: bytes, folder: Path) -> object:
    from tiss.data.archive import unpack

    out = folder / "unpacked"
    try:
        count = unpack(place(data, folder, "a.bin"), out, max_bytes=1 << 20, max_files=50)
        assert {path.name for path in folder.iterdir()} <= {"a.bin", "unpacked"}, "a file outside its folder"
        return count
    finally:
        shutil.rmtree(out, ignore_errors=True)
