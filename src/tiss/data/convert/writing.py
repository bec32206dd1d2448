"""What all converters share: pictures with their objects become a `folder` data set."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from tiss.data.classes import BACKGROUND_NAMES, IGNORE_NAMES, MOST_CLASSES
from tiss.data.convert.raster import Overlap, Shape, label_number, paint
from tiss.data.images import Colour, load_mask, picture_size
from tiss.data.index import parallel_map
from tiss.data.voc import voc_colours
from tiss.errors import TissError
from tiss.randomness import seed_of


@dataclass(frozen=True)
class Labelled:
    """One picture and what is on it: objects to draw, or a mask file in colours."""

    id: str
    image: Path
    where: str  # the file that describes it, for errors
    size: tuple[int, int] | None = None  # width and height that the labels were drawn on
    objects: tuple[tuple[str, Shape], ...] = ()
    mask: Path | None = None
    split: str | None = None  # train or test where the source says so


@dataclass
class Found:
    """What a converter read: classes in order, pictures, and what it had to leave out (reason → count)."""

    classes: list[str]
    pictures: list[Labelled]
    colours: dict[Colour, str] = field(default_factory=dict)  # of mask files
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Options:
    """How a data set is written."""

    test_share: float = 0.2
    overlap: Overlap = "smaller"
    link: bool = False
    classes: tuple[str, ...] | None = None  # chosen and ordered by the user; others become background


@dataclass(frozen=True)
class Written:
    """How many pictures went where, and what is on them."""

    train: int
    test: int
    classes: tuple[str, ...]
    pixels: tuple[dict[int, int], ...]  # of each mask: value → pixels; class i has the value i + 1


def write_folder(found: Found, out: Path, options: Options) -> Written:
    """Writes `found` in the `folder` layout to `out`, whole or not at all; every fault is found first.

    A picture goes to the test if the source says so or, where it says nothing, by a hash of its id: the
    choice does not change when pictures are added.
    """
    classes = _chosen_classes(found, options)
    if not 0 <= options.test_share < 1:
        raise TissError(f"--test-share {options.test_share}: give a share from 0 to less than 1")
    if not found.pictures:
        raise TissError(f"{out}: nothing to convert: no labelled picture was found")
    twice = [id for id, count in Counter(item.id for item in found.pictures).items() if count > 1]
    if twice:
        raise TissError(f"picture {twice[0]!r} comes twice (and {len(twice) - 1} more); rename one of them")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TissError(f"--out {out}: already there; name a new folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        for kind in ("images", "masks"):
            (temporary / kind / "train").mkdir(parents=True)
        splits = {item.id: item.split or _split(item.id, options.test_share) for item in found.pictures}
        numbers = {name: value for value, name in enumerate(classes, 1)}
        write = partial(
            _write_one, folder=temporary, splits=splits, numbers=numbers, found=found, options=options
        )
        results = list(parallel_map(write, found.pictures, "Converting"))
        faults = [result for result in results if isinstance(result, str)]
        if faults:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            raise TissError(f"{faults[0]}{more}")
        (temporary / "classes.txt").write_text("".join(f"{name}\n" for name in ("background", *classes)))
        temporary.chmod(0o755)
        if out.exists():
            out.rmdir()
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    counts = Counter(splits.values())
    return Written(counts["train"], counts["test"], tuple(classes), tuple(results))


def _chosen_classes(found: Found, options: Options) -> list[str]:
    special = BACKGROUND_NAMES + IGNORE_NAMES
    names = [name for name in found.classes if name.lower() not in special]
    if options.classes is not None:
        unknown = [name for name in options.classes if name not in names]
        if unknown:
            raise TissError(f"--classes: no {unknown[0]!r} here; there are {', '.join(names)}")
        names = list(options.classes)
    if not names:
        raise TissError("no class is named in the source")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TissError(f"class {twice!r} is named twice (spaces around a name do not count); rename one")
    if "" in names:
        raise TissError("a label has no name; give it one, or choose the classes to keep with --classes")
    if len(names) > MOST_CLASSES:
        raise TissError(f"{len(names)} classes, but masks hold {MOST_CLASSES}; choose some with --classes")
    wrong = [name for name in names if any(sign in name for sign in ",/\n") or name.startswith("#")]
    if wrong:
        raise TissError(f"class {wrong[0]!r}: a class name holds no comma, slash or leading #; rename it")
    return names


def _split(id: str, test_share: float) -> str:
    return "test" if seed_of("test", id) < test_share * 2**64 else "train"


def _write_one(
    item: Labelled,
    folder: Path,
    splits: dict[str, str],
    numbers: dict[str, int],
    found: Found,
    options: Options,
) -> dict[int, int] | str:
    """Writes one picture and its mask; returns the mask's pixels of each value, or what is wrong."""
    try:
        width, height = picture_size(item.image)
        if item.size is not None and item.size != (width, height):
            raise TissError(
                f"labels for {item.size[0]} × {item.size[1]}, but {item.image} is {width} × {height}"
            )
        if item.mask is not None:
            mask = _recoloured(item.mask, found.colours, numbers)
            if mask.shape != (height, width):
                raise TissError(
                    f"the mask is {mask.shape[1]} × {mask.shape[0]}, its picture {width} × {height}"
                )
        else:
            mask = paint(item.objects, height, width, numbers, options.overlap)
    except TissError as error:
        text = str(error)
        return text if item.where in text else f"{item.where}: {text}"
    split = splits[item.id]
    image = folder / "images" / split / f"{item.id}{item.image.suffix.lower()}"
    image.parent.mkdir(parents=True, exist_ok=True)
    if options.link:
        os.symlink(item.image.resolve(), image)
    else:
        shutil.copyfile(item.image, image)
    save_mask(mask, folder / "masks" / split / f"{item.id}.png")
    counts = np.bincount(mask.ravel(), minlength=256)
    return {int(value): int(counts[value]) for value in np.flatnonzero(counts)}


def _recoloured(path: Path, colours: dict[Colour, str], numbers: dict[str, int]) -> np.ndarray:
    return load_mask(path, {colour: label_number(name, numbers) or 0 for colour, name in colours.items()})


def save_mask(mask: np.ndarray, path: Path) -> None:
    """Writes label numbers as a palette PNG: the numbers are what is read, the colours are for looking at."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(mask)
    image.putpalette([channel for colour in voc_colours(256) for channel in colour])
    image.save(path)


def find_picture(name: str, folders: Sequence[Path], where: str) -> Path:
    """The picture that a label file names, by its last part alone, so that a file cannot point elsewhere."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    for folder in folders:
        if last and os.path.isfile(folder / last):  # a name that no file can have is simply not there
            return folder / last
    raise TissError(f"{where}: its picture {last!r} is not in {', '.join(map(str, folders))}; see --images")
