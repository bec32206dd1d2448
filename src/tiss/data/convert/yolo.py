"""YOLO's segmentation labels, as Ultralytics and Roboflow write them (https://docs.ultralytics.com/datasets/segment)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiss.data.convert.labels import Found, Labelled, Patch, Points, Polygon, Shape
from tiss.data.convert.reading import BOXES, assign_splits, find_below, images_in, pairs
from tiss.data.images import has_image_suffix
from tiss.errors import TissError
from tiss.files import read_text, read_yaml

_SPLITS = ("train", "val", "valid", "test")
_FOLDERS = ("images", *_SPLITS)


@dataclass(frozen=True)
class Shares:
    """A polygon in shares of width and height. Where an object has parts or holes, one line joins them all."""

    points: Points

    def cover(self, height: int, width: int) -> Patch:
        return Polygon(([(x * width, y * height) for x, y in self.points],)).cover(height, width)


def read_yolo(source: Path, images: Path | None = None) -> Found:
    """The images of the splits that data.yaml names; one without a label file is background.

    A label file has the path of its image, with the last folder `images` renamed to `labels`; each line is a class
    and a polygon, boxes are counted. Folders in data.yaml may be those of another machine: what lies under the end
    of such a path beside data.yaml is taken.
    """
    if images is not None:
        raise TissError("YOLO's images are found by data.yaml; leave `images` out", setting="images")
    path = _data_file(source) if source.is_dir() else source
    document = read_yaml(path)
    names = document.get("names") if isinstance(document, dict) else None
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not names or not all(type(number) is int for number in names):
        raise TissError(f"{path}: no class names; expected names: [cat, dog] or names: {{0: cat, 1: dog}}")
    classes = {number: str(names[number]).strip() for number in sorted(names)}
    root, found = path.parent, Found(list(classes.values()), [])
    listed = {name: _images(root, document[name]) for name in _SPLITS if document.get(name)}
    splits = assign_splits(
        name for name in listed if listed[name]
    )  # data.yaml may name a test that is not there
    seen: set[Path] = set()
    for name in listed:
        for image in listed[name]:
            if image in seen:
                found.notes["images that two splits share, taken once"] += 1
                continue
            seen.add(image)
            inner = image.relative_to(root).with_suffix("")
            label = _label_file(root, inner)
            objects = _objects(label, classes, found) if label.is_file() else ()
            found.notes["images without a label file, taken as background"] += not label.is_file()
            id = Path(*(part for part in inner.parts[:-1] if part not in _FOLDERS), inner.name).as_posix()
            found.images.append(Labelled(id, image, str(label), objects=objects, split=splits.get(name)))
    found.notes = +found.notes
    if not any(item.objects for item in found.images):
        raise TissError(f"{path}: no polygons; labels/train/a.txt or train/labels/a.txt holds those of a.jpg")
    return found


def _data_file(folder: Path) -> Path:
    files = sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))
    best = [path for path in files if path.stem == "data"] or files
    if len(best) != 1:
        raise TissError(
            f"{folder}: {'several' if best else 'no'} YAML files in it; name the one with the class names"
        )
    return best[0]


def _images(root: Path, places: Any) -> list[Path]:
    """The images of a split: in folders, or in text files with one path per line; what is missing is left out."""
    found: list[Path] = []
    for place in places if isinstance(places, list) else [places]:
        path = find_below(root, str(place))
        if path is not None and path.suffix == ".txt":
            listed = (find_below(root, line.strip()) for line in read_text(path).splitlines())
            found += [image for image in listed if image is not None and has_image_suffix(image)]
        elif path is not None:
            found += images_in(path)
    return found


def _label_file(root: Path, inner: Path) -> Path:
    parts = list(inner.parts)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    return root.joinpath(*parts[:-1], f"{parts[-1]}.txt")


def _objects(path: Path, classes: dict[int, str], found: Found) -> tuple[tuple[str, Shape], ...]:
    objects: list[tuple[str, Shape]] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        where, words = f"{path}, line {number}", line.split()
        if not words:
            continue
        if not words[0].isdecimal() or int(words[0][:9]) not in classes:
            raise TissError(f"{where}: class {words[0][:40]!r} is not in data.yaml's names")
        if len(words) == 5:
            found.notes[BOXES] += 1
        else:
            objects.append((classes[int(words[0])], Shares(pairs(words[1:], where))))
    return tuple(objects)
