"""Labels from other tools into the `folder` layout, and a summary of what is in them."""

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from tiss.data.base import Entry, stop_at
from tiss.data.benchmarks import voc_colours
from tiss.data.classes import BACKGROUND_NAMES, IGNORE_NAMES, MOST_CLASSES
from tiss.data.convert.labels import Found, Labelled, Overlap, label_number, paint
from tiss.data.convert.readers import read_coco, read_cvat, read_labelme, read_supervisely
from tiss.data.images import Colour, has_image_suffix, image_size, load_mask
from tiss.data.index import check_same_size, parallel_map
from tiss.errors import TissError
from tiss.files import atomic_folder, make_folder
from tiss.randomness import seed_of

CONVERTERS = {"coco": read_coco, "cvat": read_cvat, "labelme": read_labelme, "supervisely": read_supervisely}


@dataclass(frozen=True)
class Options:
    """How a data set is written."""

    test_share: float = 0.2
    overlap: Overlap = "smaller"
    link: bool = False
    classes: tuple[str, ...] | None = None  # chosen and ordered by the user; others become background


@dataclass(frozen=True)
class Written:
    """How many images went where, and what is on them."""

    train: int
    test: int
    classes: tuple[str, ...]
    pixels: tuple[dict[int, int], ...]  # of each mask: value → pixels; class i has the value i + 1


def write_folder(found: Found, out: Path, options: Options) -> Written:
    """Writes `found` in the `folder` layout to `out`, whole or not at all; every fault is found first.

    An image goes to the test if the source says so or, where it says nothing, by a hash of its id: the choice
    does not change when images are added.
    """
    classes = _chosen_classes(found, options)
    if not 0 <= options.test_share < 1:
        raise TissError(f"{options.test_share}: give a share from 0 to less than 1", setting="test_share")
    if not found.images:
        raise TissError(f"{out}: nothing to convert: no labelled image was found")
    twice = [id for id, count in Counter(item.id for item in found.images).items() if count > 1]
    if twice:
        raise TissError(f"image {twice[0]!r} is there twice (and {len(twice) - 1} more); rename one of them")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TissError(f"{out} exists already; name a new folder", setting="out")
    limit = options.test_share * 2**64
    splits = {
        item.id: item.split or ("test" if seed_of("test", item.id) < limit else "train")
        for item in found.images
    }
    numbers = {name: value for value, name in enumerate(classes, 1)}
    make_folder(out.parent)
    with atomic_folder(out, durable=False) as folder:
        for kind in ("images", "masks"):
            (folder / kind / "train").mkdir(parents=True)
        write = partial(
            _write_one, folder=folder, splits=splits, numbers=numbers, colours=found.colours, options=options
        )
        results = list(parallel_map(write, found.images, "Converting"))
        stop_at([result for result in results if isinstance(result, str)])
        (folder / "classes.txt").write_text("".join(f"{name}\n" for name in ("background", *classes)))
    counts = Counter(splits.values())
    return Written(counts["train"], counts["test"], tuple(classes), tuple(results))


def _chosen_classes(found: Found, options: Options) -> list[str]:
    names = [name for name in found.classes if name.lower() not in BACKGROUND_NAMES + IGNORE_NAMES]
    if options.classes is not None:
        unknown = [name for name in options.classes if name not in names]
        if unknown:
            raise TissError(f"no {unknown[0]!r} here; there are {', '.join(names)}", setting="classes")
        names = list(options.classes)
    if not names:
        raise TissError("no class is named in the source")
    if len(names) > MOST_CLASSES:
        raise TissError(f"{len(names)} classes, but masks hold {MOST_CLASSES}; choose the classes to keep")
    for name in names:
        if names.count(name) > 1:
            raise TissError(f"class {name!r} is there twice (spaces around a name do not count); rename one")
        if not name:
            raise TissError("a label has no name; name it, or choose the classes to keep")
        if name.startswith("#") or any(sign in name for sign in ",/\n"):
            raise TissError(f"class {name!r}: a class name holds no comma, slash or leading #; rename it")
    return names


def _write_one(
    item: Labelled,
    folder: Path,
    splits: dict[str, str],
    numbers: dict[str, int],
    colours: dict[Colour, str],
    options: Options,
) -> dict[int, int] | str:
    """Writes one image and its mask; returns the mask's pixels of each value, or what is wrong."""
    try:
        width, height = image_size(item.image)
        if item.size is not None and item.size != (width, height):
            labels = f"labels for {item.size[0]} × {item.size[1]}"
            raise TissError(f"{labels}, but {item.image} is {width} × {height}")
        if item.mask is not None:
            values = {colour: label_number(name, numbers) or 0 for colour, name in colours.items()}
            mask = load_mask(item.mask, values)
            check_same_size(item.mask, mask, (width, height))
        else:
            mask = paint(item.objects, height, width, numbers, options.overlap)
    except TissError as error:
        return str(error) if item.where in str(error) else f"{item.where}: {error}"
    image = folder / "images" / splits[item.id] / f"{item.id}{item.image.suffix.lower()}"
    image.parent.mkdir(parents=True, exist_ok=True)
    if options.link:
        os.symlink(item.image.resolve(), image)
    else:
        shutil.copyfile(item.image, image)
    save_mask(mask, folder / "masks" / splits[item.id] / f"{item.id}.png")
    return Entry.of(mask).pixels


def save_mask(mask: np.ndarray, path: Path) -> None:
    """Writes label numbers as a palette PNG: the numbers are what is read, the colours are for looking at."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(mask)
    image.putpalette([channel for colour in voc_colours(256) for channel in colour])
    image.save(path)


@dataclass(frozen=True)
class ClassSummary:
    """How much of a class there is."""

    name: str
    images: int  # whose mask has a pixel of it
    objects: int | None  # outlines of it in the labels; None where they came as masks
    share: float  # of all pixels


def summarise(found: Found, written: Written) -> list[ClassSummary]:
    """A summary of each class that was written, in order: a slip in a label shows here, not in a trained model."""
    images: Counter[int] = Counter()
    pixels: Counter[int] = Counter()
    for mask in written.pixels:
        images.update(mask.keys())
        pixels.update(mask)
    objects = Counter(label for item in found.images for label, _ in item.objects)
    drawn = any(item.mask is None for item in found.images)
    total = max(1, sum(pixels.values()))
    return [
        ClassSummary(name, images[value], objects[name] if drawn else None, pixels[value] / total)
        for value, name in enumerate(written.classes, 1)
    ]


def find_lookalikes(names: Iterable[str]) -> list[list[str]]:
    """Groups of class names that differ only in upper and lower case, spaces, hyphens or underscores.

    >>> find_lookalikes(["tv", "dog", "Tv", "road sign", "road_sign"])
    [['tv', 'Tv'], ['road sign', 'road_sign']]
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        if name.lower() not in BACKGROUND_NAMES + IGNORE_NAMES:  # these have many forms of one meaning
            groups["".join(name.replace("-", " ").replace("_", " ").split()).casefold()].append(name)
    return [group for group in groups.values() if len(group) > 1]


def find_unlabelled(found: Found) -> list[Path]:
    """Images beside labelled ones that are in no label file, by name."""
    labelled = {os.path.abspath(item.image) for item in found.images}
    folders = sorted({item.image.parent for item in found.images})
    beside = (path for folder in folders for path in sorted(folder.iterdir()))
    return [p for p in beside if os.path.abspath(p) not in labelled and has_image_suffix(p) and p.is_file()]
