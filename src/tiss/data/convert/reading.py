"""What the readers share: values of documents of unknown origin, files found by name, splits."""

import base64
import os
import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from tiss.data.convert.labels import Polygon
from tiss.data.folder import TEST_FOLDERS
from tiss.data.images import has_image_suffix
from tiss.errors import TissError
from tiss.files import read_json

MAX_BYTES = 1 << 30  # COCO's largest published file has 0.45 GB; labelme keeps whole images in its files
BOXES = "boxes without an outline, left out"
_FARTHEST = 1e6  # pixels: no image is that large


def read_table(path: Path) -> dict[str, Any]:
    """The JSON object in a file of labels."""
    return table(read_json(path, MAX_BYTES), str(path))


def table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TissError(f"{where}: expected names and values, found {type(value).__name__}")
    return value


def items(document: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    value = document.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise TissError(f"{where}: {key!r} must be a list of objects")
    return value


def text(item: dict[str, Any], key: str) -> str:
    return str(item.get(key, "")).strip()


def whole(item: dict[str, Any], key: str, where: str) -> int:
    value = item.get(key)
    if type(value) is not int:
        raise TissError(f"{where}: {key!r} must be a whole number, not {value!r}")
    return value


def points(value: Any, where: str, scale: tuple[float, float] = (1, 1)) -> tuple[tuple[float, float], ...]:
    """Pairs of numbers, each times `scale`."""
    try:
        found = tuple((float(x) * scale[0], float(y) * scale[1]) for x, y in value)
    except (TypeError, ValueError, OverflowError):
        raise TissError(f"{where}: points must be pairs of numbers") from None
    if any(not -_FARTHEST < place < _FARTHEST for point in found for place in point):
        raise TissError(f"{where}: a point lies more than a million pixels away")
    return found


def pairs(flat: list[Any], where: str) -> tuple[tuple[float, float], ...]:
    """The points of a list of x and y in turn."""
    if len(flat) % 2:
        raise TissError(f"{where}: a polygon is a list of x and y in turn")
    return points(list(zip(flat[::2], flat[1::2], strict=True)), where)


def rectangle(one: tuple[float, float], other: tuple[float, float]) -> Polygon:
    (x0, y0), (x1, y1) = one, other
    return Polygon((((x0, y0), (x1, y0), (x1, y1), (x0, y1)),))


def decode_base64(value: Any, where: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        raise TissError(f"{where}: broken base64 data") from None


def find_below(folder: Path, name: str) -> Path | None:
    """What lies in `folder` under the path `name` or an end of it: names hold folders of other machines."""
    parts = [part for part in re.split(r"[/\\]", name) if part.strip(".") and not part.endswith(":")][-16:]
    paths = (folder.joinpath(*parts[start:]) for start in range(len(parts)))
    return next((path for path in paths if os.path.exists(path)), None)


def find_image(names: list[str], folders: list[Path], where: str) -> tuple[Path, str]:
    """The image that a label file names, and its path within its folder without suffix."""
    for folder, name in product(folders, names):
        path = find_below(folder, name)
        if path is not None and path.is_file():
            return path, path.relative_to(folder).with_suffix("").as_posix()
    last = re.split(r"[/\\]", names[0])[-1][:200]
    raise TissError(f"{where}: its image {last!r} is not in {', '.join(map(str, folders))}; give `images`")


def images_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if has_image_suffix(path) and path.is_file()]


def assign_splits(names: Iterable[str]) -> dict[str, str]:
    """A tool's names of splits → train or test; one that is missing says nothing.

    The first of test, val, validation and valid is the test; with a test, the others of these are for training.

    >>> assign_splits(["train", "valid", "test"])
    {'train': 'train', 'valid': 'train', 'test': 'test'}
    >>> assign_splits(["default", "val"])
    {}
    """
    known = {name.lower(): name for name in names}
    test = next((known[name] for name in TEST_FOLDERS if name in known), None)
    if not {"train", "training"} & known.keys():
        return {}
    use = {name: "train" for key, name in known.items() if key in ("train", "training", *TEST_FOLDERS)}
    return use if test is None else use | {test: "test"}
