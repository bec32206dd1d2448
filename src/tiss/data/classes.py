"""Class lists and colour maps: from a user's files, and the published ones that come with the package."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np

from tiss.data.base import IGNORE, check_labels
from tiss.data.images import Colour
from tiss.errors import TissError
from tiss.files import read_json, read_text, read_yaml

BACKGROUND_NAMES = ("background", "_background_", "__background__", "bg")
IGNORE_NAMES = ("ignore", "_ignore_", "__ignore__", "void", "unlabeled", "unlabelled")
CLASS_FILES = ("classes.txt", "classes.json", "classes.yaml", "classes.yml")
COLOUR_FILES = ("colours.txt", "colors.txt", "colormap.txt")
MOST_CLASSES = IGNORE - 2  # values 1 to 253 however labels are numbered, so that 255 stays free


@dataclass(frozen=True)
class ClassList:
    """Foreground names in order, and whether mask value 0 is the background (else it is the first class)."""

    names: tuple[str, ...]
    background: bool
    colours: dict[str, Colour]


def find_file(root: Path, names: tuple[str, ...]) -> Path | None:
    """The one of `names` that is in `root`; two of them are an error, since they could differ."""
    found = [root / name for name in names if (root / name).is_file()]
    if len(found) > 1:
        raise TissError(f"{found[1]}: {found[0].name} is there too; keep one of the two")
    return found[0] if found else None


def read_classes(root: Path) -> ClassList:
    """The class list of a `folder` data set.

    Mask value v is entry v of the list, counted from 0. If entry 0 is the background (by its name), the
    others are the classes; if not, the data has no background and entry 0 is a class. In JSON or YAML, a
    mapping with `classes` may say `background: true`: then 0 is the background and the list starts with 1.
    """
    path = find_file(root, CLASS_FILES) or root / CLASS_FILES[0]
    if not path.is_file():
        raise TissError(f"{path}: the class list is missing; write one class name per line")
    names, background = _parse(path)
    if names and names[0].lower() in BACKGROUND_NAMES:
        names, background = names[1:], True
    _check_names(names, path)
    colour_file = find_file(root, COLOUR_FILES)
    colours = read_colours(colour_file) if colour_file else {}
    for name in colours:
        if name not in names and name.lower() not in BACKGROUND_NAMES + IGNORE_NAMES:
            raise TissError(f"{colour_file}: {name!r} is not in {path.name}")
    return ClassList(tuple(names), background, colours)


def _check_names(names: list[str], path: Path) -> None:
    if not names:
        raise TissError(f"{path}: the class list is empty; write one class name per line")
    if len(names) > MOST_CLASSES:
        raise TissError(f"{path}: {len(names)} classes, but masks of 8 bits hold {MOST_CLASSES} at most")
    for name in names:
        wrong = f"{path}: class {name!r}"
        if names.count(name) > 1:
            raise TissError(f"{wrong} is there twice")
        if name.lower() in BACKGROUND_NAMES:
            raise TissError(f"{wrong}: the background must be the first entry, since its mask value is 0")
        if any(sign in name for sign in ",/\n"):
            raise TissError(f"{wrong} holds a comma or slash, which tasks use to separate classes")


def _parse(path: Path) -> tuple[list[str], bool]:
    if path.suffix == ".txt":
        lines = [line.strip() for line in read_text(path).splitlines()]
        return [line for line in lines if line and not line.startswith("#")], False
    document = read_json(path) if path.suffix == ".json" else read_yaml(path)
    if not isinstance(document, dict):
        document = {"classes": document}
    unknown = set(map(str, document)) - {"classes", "background"}
    if unknown:
        raise TissError(f"{path}: unknown key {sorted(unknown)[0]!r}; it takes classes and background")
    names, background = document.get("classes") or [], document.get("background", False)
    if not isinstance(background, bool):
        raise TissError(f"{path}: background takes true or false")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TissError(f"{path}: expected a list of class names")
    return [name.strip() for name in names], background


def read_colours(path: Path) -> dict[str, Colour]:
    """Names and colours of a legend, each of them once."""
    colours: dict[str, Colour] = {}
    for name, colour in read_legend(path):
        if name in colours or colour in colours.values():
            raise TissError(f"{path}: {name!r} or its colour is there twice")
        colours[name] = colour
    return colours


def read_legend(path: Path) -> list[tuple[str, Colour]]:
    """Names and colours, one per line: `name r g b`, `r g b name` (CamVid) or `name:r,g,b:parts:actions` (CVAT).

    The name may hold spaces, the numbers commas. A first line without numbers is the head of a CSV file.
    """
    found: list[tuple[str, Colour]] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words = " ".join(line.split(":")[:2]).replace(",", " ").split()
        for name, digits in ((words[:-3], words[-3:]), (words[3:], words[:3])):
            colour = parse_colour(digits)
            if colour is not None and name:
                found.append((" ".join(name), colour))
                break
        else:
            if found or path.suffix.lower() != ".csv" or any(word.isdecimal() for word in words):
                example = "'name r g b' with numbers from 0 to 255"
                raise TissError(f"{path}, line {number}: expected {example}")
    return found


def parse_colour(words: list[str]) -> Colour | None:
    """Three numbers from 0 to 255; None where it is anything else."""
    if len(words) != 3 or not all(word.isdecimal() and int(word[:9]) < 256 for word in words):
        return None
    red, green, blue = map(int, words)
    return red, green, blue


def shift_labels(values: np.ndarray, where: str, classes: int) -> np.ndarray:
    """Mask values of data without a background, where the first class has 0, as label numbers 1..K and 255.

    Label 0 then stays free for "not a class yet".
    """
    try:
        check_labels(np.bincount(values.ravel(), minlength=256), where, classes - 1)
    except TissError as error:
        remedy = "if 0 is the background, make it the first line of the class list"
        raise TissError(f"{error}; {remedy}") from None
    return np.where(values == IGNORE, values, values + np.uint8(1))


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of `name`.csv among the published tables, by column."""
    text = resources.files("tiss.data").joinpath("published", f"{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def class_table(name: str) -> tuple[tuple[str, ...], list[Colour]]:
    """Names of label values 1..K and colours of 0..K from `name`_classes.csv; 0 is black."""
    rows = read_table(f"{name}_classes")
    colours = [(int(row["red"]), int(row["green"]), int(row["blue"])) for row in rows]
    return tuple(row["name"] for row in rows), [(0, 0, 0), *colours]
