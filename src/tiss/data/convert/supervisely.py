"""Supervisely's project format: meta.json, and `img` and `ann` in each data set."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from tiss.data.convert.fields import decode_base64, names_of, number, points_of, table
from tiss.data.convert.raster import Polygon, Shape, Stamp
from tiss.data.convert.writing import Found, Labelled, find_picture
from tiss.errors import TissError
from tiss.files import read_json

_MAX_BYTES = 256 << 20
_MAX_BITMAP = 64 << 20


def read_supervisely(source: Path, images: Path | None = None) -> Found:
    """The pictures of all data sets of a project; classes as meta.json has them.

    Polygons (with holes), bitmaps and rectangles are drawn; other figures cover no pixels and are
    counted. With several data sets, a picture's id starts with its data set's name.
    """
    meta = table(read_json(source / "meta.json"), str(source / "meta.json"))
    listed = names_of(meta, "classes", str(source / "meta.json"))
    classes = [str(item.get("title", "")).strip() for item in listed]
    found = Found(classes, [])
    folders = sorted(path.parent for path in source.rglob("ann") if path.is_dir())
    if not folders:
        raise TissError(f"{source}: no folder ann with annotations in it")
    for folder in folders:
        prefix = "" if len(folders) == 1 else folder.relative_to(source).as_posix() + "/"
        for path in sorted((folder / "ann").glob("*.json")):
            found.pictures.append(_read_one(path, prefix, images or folder / "img", found))
    return found


def _read_one(path: Path, prefix: str, images: Path, found: Found) -> Labelled:
    where = str(path)
    document = table(read_json(path, _MAX_BYTES), where)
    size = table(document.get("size"), where)
    objects = []
    for item in names_of(document, "objects", where):
        label = str(item.get("classTitle", "")).strip()
        if label not in found.classes:
            raise TissError(f"{where}: class {label!r} is not in meta.json")
        shape = _shape(item, where)
        if shape is None:
            found.left_out[f"figures of the kind {item.get('geometryType')}"] += 1
        else:
            objects.append((label, shape))
    # Annotations are named after the whole file name of the picture: cat.jpg.json; older ones after its stem.
    names = (
        [path.stem]
        if Path(path.stem).suffix
        else [f"{path.stem}{suffix}" for suffix in (".jpg", ".png", ".jpeg")]
    )
    name = next((name for name in names if (images / name).is_file()), names[0])
    picture = find_picture(name, [images], where)
    sides = (number(size, "width", where), number(size, "height", where))
    return Labelled(f"{prefix}{picture.stem}", picture, where, sides, tuple(objects))


def _shape(item: dict[str, Any], where: str) -> Shape | None:
    kind = item.get("geometryType") or ("bitmap" if item.get("bitmap") else "polygon")
    if kind == "bitmap":
        bitmap = table(item.get("bitmap"), where)
        ((x, y),) = points_of([bitmap.get("origin")], where)
        return Stamp(_unpacked(decode_base64(bitmap.get("data"), where), where), int(x), int(y))
    if kind not in ("polygon", "rectangle"):
        return None
    points = table(item.get("points"), where)
    outer = points_of(points.get("exterior"), where)
    if kind == "rectangle" and len(outer) == 2:
        (x0, y0), (x1, y1) = outer
        return Polygon((((x0, y0), (x1, y0), (x1, y1), (x0, y1)),))
    holes = points.get("interior") or []
    if not isinstance(holes, list):
        raise TissError(f"{where}: the holes of a polygon must be a list, not {type(holes).__name__}")
    return Polygon((outer,), tuple(points_of(hole, where) for hole in holes))


def _unpacked(data: bytes, where: str) -> bytes:
    """Bitmaps are PNG files, compressed once more with zlib."""
    if data.startswith(b"\x89PNG"):
        return data
    try:
        stream = zlib.decompressobj()
        result = stream.decompress(data, _MAX_BITMAP)
    except zlib.error:
        raise TissError(f"{where}: broken bitmap data") from None
    if stream.unconsumed_tail:
        raise TissError(f"{where}: a bitmap of more than {_MAX_BITMAP:,} bytes")
    return result
