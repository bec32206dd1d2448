"""COCO's instances files (https://cocodataset.org/#format-data)."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from tiss.data.convert.labels import Found, Labelled, Polygon, Runs, Shape
from tiss.data.convert.reading import BOXES, items, pairs, read_table, text, whole
from tiss.errors import TissError
from tiss.files import inside


def read_coco(source: Path, images: Path | None = None) -> Found:
    """All images of an instances file; those without an annotation are background.

    Images are in `images`, else in the folder images beside the file, else beside the file. Classes are the
    categories in the order of their ids. Crowd regions count as their class, since they are pixels of it.
    """
    where = str(source)
    document = read_table(source)
    beside = source.parent / "images"
    folder = images or (beside if beside.is_dir() else source.parent)
    listed = items(document, "categories", where)
    categories = {whole(item, "id", where): text(item, "name") for item in listed}
    objects: dict[int, list[tuple[str, Shape]]] = defaultdict(list)
    found = Found([categories[id] for id in sorted(categories)], [])
    for item in items(document, "annotations", where):
        place = f"{source}, annotation {item.get('id', '?')}"
        category = categories.get(whole(item, "category_id", place))
        if category is None:
            raise TissError(f"{place}: category {item['category_id']} is not in the file's categories")
        shape = _shape(item.get("segmentation"), place)
        if shape is None:
            found.notes[BOXES] += 1
        else:
            objects[whole(item, "image_id", place)].append((category, shape))
    known = set()
    for item in items(document, "images", where):
        id, name = whole(item, "id", where), text(item, "file_name")
        known.add(id)
        place = f"{source}, image {name!r}"
        size = (whole(item, "width", place), whole(item, "height", place))
        path = inside(folder, name)
        if not path.is_file():
            raise TissError(f"{place}: not in {folder}; name the folder with `images`")
        stem = Path(name).with_suffix("").as_posix()
        found.images.append(Labelled(stem, path, place, size, tuple(objects[id])))
    stray = objects.keys() - known
    if stray:
        raise TissError(f"{source}: annotations of image {min(stray)}, which is not in the file's images")
    return found


def _shape(segmentation: Any, where: str) -> Shape | None:
    if segmentation is None or segmentation == []:
        return None
    if isinstance(segmentation, list):
        return Polygon(
            tuple(pairs(flat if isinstance(flat, list) else [flat], where) for flat in segmentation)
        )
    if not isinstance(segmentation, dict):
        raise TissError(f"{where}: a segmentation is polygons or a run-length mask")
    size, counts = segmentation.get("size"), segmentation.get("counts")
    if not isinstance(size, list) or len(size) != 2 or not all(type(side) is int for side in size):
        raise TissError(f"{where}: a run-length mask needs its size, [height, width]")
    if isinstance(counts, str):
        return Runs(size[0], size[1], decode_runs(counts, where))
    if isinstance(counts, list) and all(type(count) is int for count in counts):
        return Runs(size[0], size[1], tuple(counts))
    raise TissError(f"{where}: a run-length mask needs its counts, numbers or text")


def decode_runs(text: str, where: str = "run-length mask") -> tuple[int, ...]:
    """Run lengths from COCO's compressed text.

    Each number is a row of characters with six bits each, lowest first (character code less 48): five bits of
    the number, and one that says whether more follow; the last character's fifth bit is the sign. From the
    fourth number on, it is the difference to the last but one.
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
