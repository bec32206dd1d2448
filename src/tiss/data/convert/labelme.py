"""labelme's JSON files (https://github.com/wkentaro/labelme)."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

from tiss.data.convert.labels import Found, Labelled, Polygon, Shape, Stamp, ellipse
from tiss.data.convert.reading import (
    decode_base64,
    find_image,
    items,
    points,
    read_table,
    rectangle,
    text,
    whole,
)
from tiss.errors import TissError


def read_labelme(source: Path, images: Path | None = None) -> Found:
    """The JSON files under `source`, one per image; classes in alphabetical order.

    Images are beside their file or in `images`. Polygons, rectangles, circles and masks are drawn; points and
    lines cover no pixels and are left out and counted.
    """
    files = sorted(source.rglob("*.json")) if source.is_dir() else [source]
    if not files:
        raise TissError(f"{source}: no JSON files in it")
    found = Found([], [])
    base = source if source.is_dir() else source.parent
    for path in files:
        where = str(path)
        document = read_table(path)
        objects = [
            (text(item, "label"), shape)
            for item in items(document, "shapes", where)
            if (shape := _shape(item, where, found.notes)) is not None
        ]
        size = (whole(document, "imageWidth", where), whole(document, "imageHeight", where))
        image, _ = find_image(
            [text(document, "imagePath")], [path.parent, *([images] if images else [])], where
        )
        id = path.relative_to(base).with_suffix("").as_posix()
        found.images.append(Labelled(id, image, where, size, tuple(objects)))
    found.classes = sorted({label for item in found.images for label, _ in item.objects})
    return found


def _shape(item: dict[str, Any], where: str, notes: Counter[str]) -> Shape | None:
    kind = item.get("shape_type") or "polygon"
    corners = points(item.get("points"), where)
    if kind == "polygon" and len(corners) > 2:
        return Polygon((corners,))
    if kind == "rectangle" and len(corners) >= 2:
        return rectangle(corners[0], corners[1] if len(corners) == 2 else corners[2])
    if kind == "circle" and len(corners) == 2:
        radius = math.dist(*corners)
        return ellipse(*corners[0], radius, radius)
    if kind == "mask" and corners:
        return Stamp(decode_base64(item.get("mask"), where), round(corners[0][0]), round(corners[0][1]))
    if kind in ("point", "points", "line", "linestrip", "polygon"):
        notes[f"shapes of the kind {kind} that cover no area, left out"] += 1
        return None
    raise TissError(f"{where}: a shape of the kind {kind!r} with {len(corners)} points is not known")
