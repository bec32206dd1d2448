"""Supervisely's projects (https://docs.supervisely.com/data-organization/00_ann_format_navi)."""

import zlib
from pathlib import Path
from typing import Any

from tiss.data.convert.labels import Found, Labelled, Polygon, Shape, Stamp
from tiss.data.convert.reading import (
    decode_base64,
    find_image,
    items,
    points,
    read_table,
    rectangle,
    table,
    text,
    whole,
)
from tiss.errors import TissError

_MAX_BITMAP = 64 << 20


def read_supervisely(source: Path, images: Path | None = None) -> Found:
    """The images of all data sets of a project; classes as meta.json has them.

    Polygons (with holes), bitmaps and rectangles are drawn; other figures cover no pixels and are counted.
    With several data sets, an image's id starts with its data set's name.
    """
    meta = source / "meta.json"
    found = Found([text(item, "title") for item in items(read_table(meta), "classes", str(meta))], [])
    folders = sorted(path.parent for path in source.rglob("ann") if path.is_dir())
    if not folders:
        raise TissError(f"{source}: no folder ann with annotations in it")
    for folder in folders:
        prefix = "" if len(folders) == 1 else folder.relative_to(source).as_posix() + "/"
        for path in sorted((folder / "ann").glob("*.json")):
            where = str(path)
            document = read_table(path)
            size = table(document.get("size"), where)
            objects = []
            for item in items(document, "objects", where):
                label = text(item, "classTitle")
                if label not in found.classes:
                    raise TissError(f"{where}: class {label!r} is not in meta.json")
                shape = _shape(item, where)
                if shape is None:
                    found.notes[f"figures of the kind {item.get('geometryType')}, left out"] += 1
                else:
                    objects.append((label, shape))
            # annotations are named after the image's whole file name, cat.jpg.json; older ones after its stem
            names = [f"{path.stem}{suffix}" for suffix in ("", ".jpg", ".png", ".jpeg")]
            names = names[:1] if Path(path.stem).suffix else names
            image, _ = find_image(names, [images or folder / "img"], where)
            sides = (whole(size, "width", where), whole(size, "height", where))
            found.images.append(Labelled(f"{prefix}{image.stem}", image, where, sides, tuple(objects)))
    return found


def _shape(item: dict[str, Any], where: str) -> Shape | None:
    kind = item.get("geometryType") or ("bitmap" if item.get("bitmap") else "polygon")
    if kind == "bitmap":
        bitmap = table(item.get("bitmap"), where)
        ((x, y),) = points([bitmap.get("origin")], where)
        return Stamp(_inflated(decode_base64(bitmap.get("data"), where), where), int(x), int(y))
    if kind not in ("polygon", "rectangle"):
        return None
    corners = table(item.get("points"), where)
    outer = points(corners.get("exterior"), where)
    if kind == "rectangle" and len(outer) == 2:
        return rectangle(*outer)
    holes = corners.get("interior") or []
    if not isinstance(holes, list):
        raise TissError(f"{where}: the holes of a polygon must be a list, not {type(holes).__name__}")
    return Polygon((outer,), tuple(points(hole, where) for hole in holes))


def _inflated(data: bytes, where: str) -> bytes:
    """Bitmaps are PNG files, compressed again with zlib."""
    if data.startswith(b"\x89PNG"):
        return data
    stream = zlib.decompressobj()
    try:
        result = stream.decompress(data, _MAX_BITMAP)
    except zlib.error:
        raise TissError(f"{where}: broken bitmap data") from None
    if stream.unconsumed_tail:
        raise TissError(f"{where}: a bitmap of more than {_MAX_BITMAP:,} bytes")
    return result
