"""labelme's JSON, one file a picture."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from tiss.data.convert.fields import decode_base64, names_of, number, points_of, table
from tiss.data.convert.raster import Disc, Polygon, Shape, Stamp
from tiss.data.convert.writing import Found, Labelled, find_picture
from tiss.errors import TissError
from tiss.files import read_json

_MAX_BYTES = 256 << 20  # the picture itself may stand in the file


def read_labelme(source: Path, images: Path | None = None) -> Found:
    """Every JSON file under `source`; classes in alphabetical order.

    Pictures lie beside their file or in `images`. Polygons, rectangles, circles and masks are drawn;
    points and lines cover no pixels and are left out and counted.
    """
    files = sorted(source.rglob("*.json")) if source.is_dir() else [source]
    if not files:
        raise TissError(f"{source}: no JSON files in it")
    found = Found([], [])
    base = source if source.is_dir() else source.parent
    names: set[str] = set()
    for path in files:
        document = table(read_json(path, _MAX_BYTES), str(path))
        objects = []
        for item in names_of(document, "shapes", str(path)):
            label = str(item.get("label", "")).strip()
            shape = _shape(item, str(path), found.left_out)
            if shape is not None:
                objects.append((label, shape))
                names.add(label)
        size = (number(document, "imageWidth", str(path)), number(document, "imageHeight", str(path)))
        folders = [path.parent, *([images] if images else [])]
        picture = find_picture(str(document.get("imagePath", "")), folders, str(path))
        id = path.relative_to(base).with_suffix("").as_posix()
        found.pictures.append(Labelled(id, picture, str(path), size, tuple(objects)))
    found.classes = sorted(names)
    return found


def _shape(item: dict[str, Any], where: str, left_out: Counter[str]) -> Shape | None:
    kind = item.get("shape_type") or "polygon"
    points = points_of(item.get("points"), where)
    if kind == "polygon" and len(points) > 2:
        return Polygon((points,))
    if kind == "rectangle" and len(points) >= 2:
        (x0, y0), (x1, y1) = points[0], points[1] if len(points) == 2 else points[2]
        return Polygon((((x0, y0), (x1, y0), (x1, y1), (x0, y1)),))
    if kind == "circle" and len(points) == 2:
        return Disc(*points[0], math.dist(points[0], points[1]))
    if kind == "mask" and points:
        return Stamp(decode_base64(item.get("mask"), where), round(points[0][0]), round(points[0][1]))
    if kind in ("point", "points", "line", "linestrip", "polygon"):
        left_out[f"shapes of the kind {kind} that cover no area"] += 1
        return None
    raise TissError(f"{where}: a shape of the kind {kind!r} with {len(points)} points is not known")
