"""COCO's instance JSON: polygons, and run-length masks in both forms."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from tiss.data.convert.fields import MAX_JSON, names_of, number, points_of, table
from tiss.data.convert.raster import Polygon, Runs, Shape
from tiss.data.convert.writing import Found, Labelled
from tiss.errors import TissError
from tiss.files import inside, read_json


def read_coco(source: Path, images: Path | None = None) -> Found:
    """All pictures of an instances file; those without an annotation are background whole.

    Pictures lie in `images`, else in `images` beside the file, else beside the file. Classes are the
    categories in the order of their ids. Crowd regions count as their class, for they are pixels of it.
    """
    document = table(read_json(source, MAX_JSON), str(source))
    folder = images or next((f for f in (source.parent / "images",) if f.is_dir()), source.parent)
    categories = {
        number(item, "id", str(source)): str(item.get("name", "")).strip()
        for item in names_of(document, "categories", str(source))
    }
    objects: dict[int, list[tuple[str, Shape]]] = defaultdict(list)
    found = Found([categories[id] for id in sorted(categories)], [])
    for item in names_of(document, "annotations", str(source)):
        where = f"{source}, annotation {item.get('id', '?')}"
        category = categories.get(number(item, "category_id", where))
        if category is None:
            raise TissError(f"{where}: category {item['category_id']} is not in the file's categories")
        shape = _shape(item.get("segmentation"), where)
        if shape is None:
            found.left_out["annotations with a box but no outline"] += 1
        else:
            objects[number(item, "image_id", where)].append((category, shape))
    known = set()
    for item in names_of(document, "images", str(source)):
        id, name = number(item, "id", str(source)), str(item.get("file_name", ""))
        known.add(id)
        where = f"{source}, picture {name!r}"
        size = (number(item, "width", where), number(item, "height", where))
        path = inside(folder, name)
        if not path.is_file():
            raise TissError(f"{where}: not in {folder}; name the folder with --images")
        stem = Path(name).with_suffix("").as_posix()
        found.pictures.append(Labelled(stem, path, where, size, tuple(objects[id])))
    stray = objects.keys() - known
    if stray:
        raise TissError(f"{source}: annotations of picture {min(stray)}, which is not in the file's images")
    return found


def _shape(segmentation: Any, where: str) -> Shape | None:
    if isinstance(segmentation, list):
        rings = []
        for flat in segmentation:
            if not isinstance(flat, list) or len(flat) % 2:
                raise TissError(f"{where}: a polygon is a list of x and y in turn")
            rings.append(points_of(list(zip(flat[::2], flat[1::2], strict=True)), where))
        return Polygon(tuple(rings)) if rings else None
    if isinstance(segmentation, dict):
        size, counts = segmentation.get("size"), segmentation.get("counts")
        if not isinstance(size, list) or len(size) != 2 or not all(type(side) is int for side in size):
            raise TissError(f"{where}: a run-length mask needs its size, [height, width]")
        if isinstance(counts, str):
            return Runs(size[0], size[1], decode_runs(counts, where))
        if isinstance(counts, list) and all(type(count) is int for count in counts):
            return Runs(size[0], size[1], tuple(counts))
        raise TissError(f"{where}: a run-length mask needs its counts, numbers or text")
    if segmentation is None:
        return None
    raise TissError(f"{where}: a segmentation is polygons or a run-length mask")


def decode_runs(text: str, where: str = "run-length mask") -> tuple[int, ...]:
    """Run lengths from COCO's compressed text.

    Each number is a row of characters with six bits each, lowest first (character code less 48): five bits of
    the number, and one that says whether more follow; the last character's fifth bit is the sign. From the
    fourth number on, the difference to the last but one is kept instead.
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 60:
            raise TissError(f"{where}: not COCO's compressed run lengths")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise TissError(f"{where}: compressed run lengths that are cut off")
    return tuple(counts)
