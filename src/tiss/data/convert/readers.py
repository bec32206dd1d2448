"""Reads the labels of COCO, CVAT, labelme and Supervisely. Their files may hold anything: errors name the file."""

import base64
import math
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tiss.data.classes import parse_colour
from tiss.data.convert.labels import Disc, Found, Labelled, Polygon, Runs, Shape, Stamp
from tiss.data.folder import TEST_FOLDERS, read_list
from tiss.data.images import IMAGE_SUFFIXES, Colour
from tiss.errors import TissError
from tiss.files import inside, read_json, read_text

MAX_JSON = 1 << 30  # COCO's largest published file has 0.45 GB; labelme keeps whole images in its files
_MAX_BITMAP = 64 << 20
_FARTHEST = 1e6  # pixels: no image is that large


def read_coco(source: Path, images: Path | None = None) -> Found:
    """All images of an instances file; those without an annotation are background.

    Images are in `images`, else in the folder images beside the file, else beside the file. Classes are the
    categories in the order of their ids. Crowd regions count as their class, since they are pixels of it.
    """
    where = str(source)
    document = _table(read_json(source, MAX_JSON), where)
    beside = source.parent / "images"
    folder = images or (beside if beside.is_dir() else source.parent)
    listed = _items(document, "categories", where)
    categories = {_number(item, "id", where): _name(item, "name") for item in listed}
    objects: dict[int, list[tuple[str, Shape]]] = defaultdict(list)
    found = Found([categories[id] for id in sorted(categories)], [])
    for item in _items(document, "annotations", where):
        place = f"{source}, annotation {item.get('id', '?')}"
        category = categories.get(_number(item, "category_id", place))
        if category is None:
            raise TissError(f"{place}: category {item['category_id']} is not in the file's categories")
        shape = _coco_shape(item.get("segmentation"), place)
        if shape is None:
            found.left_out["annotations with a box but no outline"] += 1
        else:
            objects[_number(item, "image_id", place)].append((category, shape))
    known = set()
    for item in _items(document, "images", where):
        id, name = _number(item, "id", where), _name(item, "file_name")
        known.add(id)
        place = f"{source}, image {name!r}"
        size = (_number(item, "width", place), _number(item, "height", place))
        path = inside(folder, name)
        if not path.is_file():
            raise TissError(f"{place}: not in {folder}; name the folder with `images`")
        stem = Path(name).with_suffix("").as_posix()
        found.images.append(Labelled(stem, path, place, size, tuple(objects[id])))
    stray = objects.keys() - known
    if stray:
        raise TissError(f"{source}: annotations of image {min(stray)}, which is not in the file's images")
    return found


def _coco_shape(segmentation: Any, where: str) -> Shape | None:
    if segmentation is None or segmentation == []:
        return None
    if isinstance(segmentation, list):
        rings = []
        for flat in segmentation:
            if not isinstance(flat, list) or len(flat) % 2:
                raise TissError(f"{where}: a polygon is a list of x and y in turn")
            rings.append(_points(list(zip(flat[::2], flat[1::2], strict=True)), where))
        return Polygon(tuple(rings))
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


def read_cvat(source: Path, images: Path | None = None) -> Found:
    """CVAT's export "segmentation mask": the masks of SegmentationClass, by the colours of labelmap.txt.

    Images are in `images`, else in JPEGImages beside the masks. Where lists named train and test (or val) are
    in ImageSets/Segmentation, they make the splits; CVAT's default.txt says nothing about them.
    """
    colours = _read_labelmap(source / "labelmap.txt")
    folder, masks = images or source / "JPEGImages", source / "SegmentationClass"
    texts = sorted((source / "ImageSets" / "Segmentation").glob("*.txt"))
    lists = {path.stem.lower(): path for path in texts}
    tested = next((lists[name] for name in TEST_FOLDERS if name in lists), None)
    splits: dict[str, str] = {}
    if tested is not None and "train" in lists:
        splits = dict.fromkeys(read_list(lists["train"]), "train") | dict.fromkeys(read_list(tested), "test")
    found = Found(list(dict.fromkeys(colours.values())), [], colours)
    for path in sorted(masks.rglob("*.png")):
        stem = path.relative_to(masks).with_suffix("")
        names = [f"{stem}{form}" for suffix in IMAGE_SUFFIXES for form in (suffix, suffix.upper())]
        image = next((folder / name for name in names if (folder / name).is_file()), None)
        if image is None:
            raise TissError(f"{path}: no image {stem} in {folder}; export with images, or give `images`")
        split = splits.get(stem.name)
        found.images.append(Labelled(stem.as_posix(), image, str(path), mask=path, split=split))
    if not found.images:
        raise TissError(f"{masks}: no masks; it takes an export of the kind 'Segmentation mask'")
    return found


def _read_labelmap(path: Path) -> dict[Colour, str]:
    """Colour → label from lines `label:r,g,b:parts:actions`; black is the background unless another label has it."""
    colours: dict[Colour, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        colour = parse_colour([word.strip() for word in rest.split(":")[0].split(",")])
        if not name or colour is None:
            raise TissError(f"{path}, line {number}: expected 'label:r,g,b:parts:actions'")
        if colours.get(colour, name) != name:
            raise TissError(f"{path}, line {number}: {name!r} has the colour of {colours[colour]!r}")
        colours[colour] = name.strip()
    if not colours:
        raise TissError(f"{path}: no labels in it")
    colours.setdefault((0, 0, 0), "background")
    return colours


def read_labelme(source: Path, images: Path | None = None) -> Found:
    """labelme's JSON files under `source`, one per image; classes in alphabetical order.

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
        document = _table(read_json(path, MAX_JSON), where)
        objects = [
            (_name(item, "label"), shape)
            for item in _items(document, "shapes", where)
            if (shape := _labelme_shape(item, where, found.left_out)) is not None
        ]
        size = (_number(document, "imageWidth", where), _number(document, "imageHeight", where))
        folders = [path.parent, *([images] if images else [])]
        image = _find_image([str(document.get("imagePath", ""))], folders, where)
        id = path.relative_to(base).with_suffix("").as_posix()
        found.images.append(Labelled(id, image, where, size, tuple(objects)))
    found.classes = sorted({label for item in found.images for label, _ in item.objects})
    return found


def _labelme_shape(item: dict[str, Any], where: str, left_out: Counter[str]) -> Shape | None:
    kind = item.get("shape_type") or "polygon"
    points = _points(item.get("points"), where)
    if kind == "polygon" and len(points) > 2:
        return Polygon((points,))
    if kind == "rectangle" and len(points) >= 2:
        return _rectangle(points[0], points[1] if len(points) == 2 else points[2])
    if kind == "circle" and len(points) == 2:
        return Disc(*points[0], math.dist(points[0], points[1]))
    if kind == "mask" and points:
        return Stamp(_decode_base64(item.get("mask"), where), round(points[0][0]), round(points[0][1]))
    if kind in ("point", "points", "line", "linestrip", "polygon"):
        left_out[f"shapes of the kind {kind} that cover no area"] += 1
        return None
    raise TissError(f"{where}: a shape of the kind {kind!r} with {len(points)} points is not known")


def read_supervisely(source: Path, images: Path | None = None) -> Found:
    """The images of all data sets of a Supervisely project; classes as meta.json has them.

    Polygons (with holes), bitmaps and rectangles are drawn; other figures cover no pixels and are counted.
    With several data sets, an image's id starts with its data set's name.
    """
    where = str(source / "meta.json")
    listed = _items(_table(read_json(where), where), "classes", where)
    found = Found([_name(item, "title") for item in listed], [])
    folders = sorted(path.parent for path in source.rglob("ann") if path.is_dir())
    if not folders:
        raise TissError(f"{source}: no folder ann with annotations in it")
    for folder in folders:
        prefix = "" if len(folders) == 1 else folder.relative_to(source).as_posix() + "/"
        for path in sorted((folder / "ann").glob("*.json")):
            where = str(path)
            document = _table(read_json(path, MAX_JSON), where)
            size = _table(document.get("size"), where)
            objects = []
            for item in _items(document, "objects", where):
                label = _name(item, "classTitle")
                if label not in found.classes:
                    raise TissError(f"{where}: class {label!r} is not in meta.json")
                shape = _supervisely_shape(item, where)
                if shape is None:
                    found.left_out[f"figures of the kind {item.get('geometryType')}"] += 1
                else:
                    objects.append((label, shape))
            # annotations are named after the image's whole file name, cat.jpg.json; older ones after its stem
            names = [f"{path.stem}{suffix}" for suffix in ("", ".jpg", ".png", ".jpeg")]
            names = names[:1] if Path(path.stem).suffix else names
            image = _find_image(names, [images or folder / "img"], where)
            sides = (_number(size, "width", where), _number(size, "height", where))
            found.images.append(Labelled(f"{prefix}{image.stem}", image, where, sides, tuple(objects)))
    return found


def _supervisely_shape(item: dict[str, Any], where: str) -> Shape | None:
    kind = item.get("geometryType") or ("bitmap" if item.get("bitmap") else "polygon")
    if kind == "bitmap":
        bitmap = _table(item.get("bitmap"), where)
        ((x, y),) = _points([bitmap.get("origin")], where)
        return Stamp(_inflated(_decode_base64(bitmap.get("data"), where), where), int(x), int(y))
    if kind not in ("polygon", "rectangle"):
        return None
    points = _table(item.get("points"), where)
    outer = _points(points.get("exterior"), where)
    if kind == "rectangle" and len(outer) == 2:
        return _rectangle(*outer)
    holes = points.get("interior") or []
    if not isinstance(holes, list):
        raise TissError(f"{where}: the holes of a polygon must be a list, not {type(holes).__name__}")
    return Polygon((outer,), tuple(_points(hole, where) for hole in holes))


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


def _rectangle(one: tuple[float, float], other: tuple[float, float]) -> Polygon:
    (x0, y0), (x1, y1) = one, other
    return Polygon((((x0, y0), (x1, y0), (x1, y1), (x0, y1)),))


def _find_image(names: list[str], folders: list[Path], where: str) -> Path:
    """The image that a label file names, by its last part alone, so that a file cannot point elsewhere."""
    last = [name.replace("\\", "/").rsplit("/", 1)[-1] for name in names]
    for path in (folder / name for folder in folders for name in last if name):
        if path.is_file():
            return path
    raise TissError(f"{where}: its image {last[0]!r} is not in {', '.join(map(str, folders))}; give `images`")


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TissError(f"{where}: expected names and values, found {type(value).__name__}")
    return value


def _items(document: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    value = document.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise TissError(f"{where}: {key!r} must be a list of objects")
    return value


def _name(item: dict[str, Any], key: str) -> str:
    return str(item.get(key, "")).strip()


def _number(item: dict[str, Any], key: str, where: str) -> int:
    value = item.get(key)
    if type(value) is not int:
        raise TissError(f"{where}: {key!r} must be a whole number, not {value!r}")
    return value


def _points(value: Any, where: str) -> tuple[tuple[float, float], ...]:
    try:
        points = tuple((float(x), float(y)) for x, y in value)
    except (TypeError, ValueError, OverflowError):
        raise TissError(f"{where}: points must be pairs of numbers") from None
    if any(not -_FARTHEST < place < _FARTHEST for point in points for place in point):
        raise TissError(f"{where}: a point lies more than a million pixels away")
    return points


def _decode_base64(text: Any, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise TissError(f"{where}: broken base64 data") from None
