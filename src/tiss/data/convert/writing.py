"""Writes what a reader found in the `folder` layout, with a sheet of images to look at, and says what was written."""

import glob
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from tiss.data.base import IGNORE, Entry, check_labels, stop_at
from tiss.data.benchmarks import voc_colours
from tiss.data.classes import BACKGROUND_NAMES, IGNORE_NAMES, MOST_CLASSES
from tiss.data.convert.labels import Found, Labelled, Overlap, label_number, paint
from tiss.data.images import Blob, check_whole, has_image_suffix, image_size, load_image, load_mask
from tiss.data.index import check_same_size, parallel_map
from tiss.errors import TissError
from tiss.files import atomic_folder, inside, make_folder
from tiss.palette import Colour, class_colours, overlay
from tiss.randomness import seed_of

SHEET = "contact.png"


@dataclass(frozen=True)
class Options:
    """How a data set is written."""

    test_share: float = 0.2
    overlap: Overlap = "smaller"
    link: bool = False
    classes: tuple[str, ...] | None = None  # chosen and ordered by the user; others become background


@dataclass(frozen=True)
class ClassSummary:
    """How much of a class there is."""

    name: str
    images: int  # whose mask has a pixel of it
    objects: int | None  # outlines of it in the labels; None where they came as masks
    pixels: int
    share: float  # of all pixels


@dataclass(frozen=True)
class Written:
    """How many images went where, what is on them, and which images were broken and left out."""

    train: int
    test: int
    classes: tuple[ClassSummary, ...]
    ignored: ClassSummary  # of label 255
    broken: tuple[str, ...]


def write_folder(found: Found, out: Path, options: Options) -> Written:
    """Writes `found` in the `folder` layout to `out`, whole or not at all; every fault of a label is found first.

    An image goes to the test if the source says so or, where it says nothing, by a hash of its id: the choice
    does not change when images are added. A broken image is left out and named. `contact.png` shows what was written.
    """
    classes = _chosen_classes(found, options)
    if not 0 <= options.test_share < 1:
        raise TissError(f"{options.test_share}: give a share from 0 to less than 1", setting="test_share")
    if not found.images:
        raise TissError(f"{out}: nothing to convert: no labelled image was found")
    limit = options.test_share * 2**64
    names = [
        f"{item.split or ('test' if seed_of('test', item.id) < limit else 'train')}/{item.id}"
        for item in found.images
    ]
    twice = [name.partition("/")[2] for name, count in Counter(names).items() if count > 1]
    if twice:
        raise TissError(f"image {twice[0]!r} is there twice (and {len(twice) - 1} more); rename one of them")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TissError(f"{out} exists already; name a new folder", setting="out")
    numbers = {name: value for value, name in enumerate(classes, 1)}
    make_folder(out.parent)
    with atomic_folder(out, durable=False) as folder:
        for kind in ("images", "masks"):
            (folder / kind / "train").mkdir(parents=True)

        def write(place: int) -> Entry | str:
            return _write_one(found.images[place], names[place], folder, numbers, found.classes, options)

        # by place: what reads an image or mask need not be sent to another process
        results = list(parallel_map(write, range(len(names)), "Converting"))
        stop_at([result for result in results if isinstance(result, str)])
        entries = {name: entry for name, entry in zip(names, results, strict=True) if entry.problem is None}
        broken = tuple(entry.problem for entry in results if entry.problem is not None)
        if not entries:
            stop_at(list(broken))
        (folder / "classes.txt").write_text("".join(f"{name}\n" for name in ("background", *classes)))
        draw_sheet(folder, entries, classes).save(folder / SHEET)
    kept = [item for item, name in zip(found.images, names, strict=True) if name in entries]
    tested = sum(name.startswith("test/") for name in entries)
    return Written(len(entries) - tested, tested, *_summarise(kept, list(entries.values()), classes), broken)


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
    item: Labelled, name: str, folder: Path, numbers: dict[str, int], classes: list[str], options: Options
) -> Entry | str:
    """Writes one image and its mask; returns what the mask holds, what is wrong with the image, or with the label."""
    try:
        source = item.image if isinstance(item.image, Path) else item.image()
        width, height = image_size(source)
        check_whole(source)
        if _suffix(source) not in (".jpg", ".jpeg", ".png"):  # the others have no mark at their end
            load_image(source)
    except TissError as error:
        return Entry({}, problem=str(error))
    try:
        if item.size is not None and item.size != (width, height):
            labels = f"labels for {item.size[0]} × {item.size[1]}"
            raise TissError(f"{labels}, but {source} is {width} × {height}")
        if item.mask is not None:
            mask = _renumber(item.mask(), classes, numbers, item.where)
            check_same_size(item.where, mask, (width, height))
        else:
            mask = paint(item.objects, height, width, numbers, options.overlap)
    except TissError as error:
        return str(error) if item.where in str(error) else f"{item.where}: {error}"
    image = inside(folder, f"images/{name}{_suffix(source)}")
    image.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, Blob):
        image.write_bytes(source.getvalue())
    elif options.link:
        os.symlink(source.resolve(), image)
    else:
        shutil.copyfile(source, image)
    save_mask(mask, folder / "masks" / f"{name}.png")
    return Entry.of(mask)


def _renumber(values: np.ndarray, classes: list[str], numbers: dict[str, int], where: str) -> np.ndarray:
    """Places in the source's class list as label numbers."""
    check_labels(np.bincount(values.ravel(), minlength=256), where, len(classes) - 1)
    table = np.full(256, IGNORE, np.uint8)
    table[: len(classes)] = [label_number(name, numbers) or 0 for name in classes]
    return table[values]


def _suffix(source: Path | Blob) -> str:
    if isinstance(source, Path):
        return source.suffix.lower()
    return {b"\xff\xd8": ".jpg", b"RI": ".webp"}.get(source.getvalue()[:2], ".png")


def save_mask(mask: np.ndarray, path: Path) -> None:
    """Writes label numbers as a palette PNG: the numbers are what is read, the colours are for looking at."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(mask)
    image.putpalette([channel for colour in voc_colours(256) for channel in colour])
    image.save(path)


def _summarise(
    kept: list[Labelled], entries: list[Entry], classes: list[str]
) -> tuple[tuple[ClassSummary, ...], ClassSummary]:
    """A summary of each class, in order, and of what is ignored: a slip in a label shows here, not in training."""
    images: Counter[int] = Counter()
    pixels: Counter[int] = Counter()
    for entry in entries:
        images.update(entry.pixels.keys())
        pixels.update(entry.pixels)
    objects = Counter(label for item in kept for label, _ in item.objects)
    drawn = any(item.mask is None for item in kept)
    *rows, ignored = (
        ClassSummary(
            *(name, images[value], objects[name] if drawn else None),
            *(pixels[value], pixels[value] / max(1, pixels.total())),
        )
        for value, name in [*enumerate(classes, 1), (IGNORE, "(ignored)")]
    )
    return tuple(rows), ignored


def find_lookalikes(names: Iterable[str], others: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of names, one from each list, that differ only in case, spaces, hyphens, underscores or one letter.

    >>> find_lookalikes(["tv", "road sign"], ["tv", "Tv", "road_sgn"])
    [('tv', 'Tv'), ('road sign', 'road_sgn')]
    """
    special = BACKGROUND_NAMES + IGNORE_NAMES  # these have many forms of one meaning
    known = {other: _forms(other) for other in others if other.lower() not in special}
    found: list[tuple[str, str]] = []
    for name in names:
        forms = _forms(name)
        alike = [other for other in known if other != name and known[other] & forms]
        found += [(name, other) for other in alike if (other, name) not in found]
    return found


def _forms(name: str) -> set[tuple[str, str]]:
    """A name with its digits, which are never slips; from five letters on also without each letter in turn."""
    word, digits = re.sub(r"[-_\s\d]", "", name).casefold()[:100], "".join(re.findall(r"\d", name))
    shorter = [word[:place] + word[place + 1 :] for place in range(len(word))] if len(word) > 4 else []
    return {(form, digits) for form in [word, *shorter]}


def find_unlabelled(found: Found) -> list[Path]:
    """Images beside labelled ones that are in no label file, by name."""
    images = [item.image for item in found.images if isinstance(item.image, Path)]
    labelled = {os.path.abspath(path) for path in [*map(str, images), *(item.where for item in found.images)]}
    beside = (
        path for folder in sorted({image.parent for image in images}) for path in sorted(folder.iterdir())
    )
    return [p for p in beside if os.path.abspath(p) not in labelled and has_image_suffix(p) and p.is_file()]


MOST = 20
COLUMNS = 5
TILE = (320, 240)
GAP = 8
LINE = 20
FONT = 14
IGNORED = (255, 255, 255)


def draw_sheet(folder: Path, entries: Mapping[str, Entry], classes: Sequence[str]) -> Image.Image:
    """Up to 20 images of a `folder` data set below a legend; `entries` is keyed by split/id."""
    chosen = choose_images(entries, MOST)
    seen = {value for name in chosen for value in entries[name].pixels}
    colours = [*class_colours(len(classes) + 1), IGNORED]
    words = [*enumerate(classes, 1), *([(IGNORE, "ignored")] if IGNORE in seen else [])]
    words = [(value, word if value in seen else f"{word} (not shown)") for value, word in words]
    columns = min(COLUMNS, len(chosen))
    width = GAP + max(2, columns) * (TILE[0] + GAP)
    font = ImageFont.load_default(FONT)
    places = _flow([FONT + 16 + int(font.getlength(word)) for _, word in words], width - GAP)
    top = places[-1][1] + LINE + GAP
    height = top + -(-len(chosen) // columns) * (TILE[1] + LINE + GAP)
    sheet = Image.new("RGB", (width, height), (24, 24, 24))
    draw = ImageDraw.Draw(sheet)
    for (value, word), (x, y) in zip(words, places, strict=True):
        draw.rectangle(
            (x, y + 2, x + FONT, y + 2 + FONT), fill=IGNORED if value == IGNORE else colours[value]
        )
        draw.text((x + FONT + 6, y), word, fill="white" if value in seen else "gray", font=font)
    for place, name in enumerate(chosen):
        x = GAP + place % columns * (TILE[0] + GAP)
        y = top + place // columns * (TILE[1] + LINE + GAP)
        tile = _tile(folder, name, colours)
        sheet.paste(tile, (x + (TILE[0] - tile.width) // 2, y + (TILE[1] - tile.height) // 2))
        draw.text((x, y + TILE[1] + 2), name if len(name) < 40 else f"…{name[-38:]}", fill="white", font=font)
    return sheet


def choose_images(entries: Mapping[str, Entry], most: int) -> list[str]:
    """Names such that each class is seen, rare ones first, where they are largest; then evenly, labelled ones first."""
    images = Counter(value for entry in entries.values() for value in entry.present())
    chosen: dict[str, None] = {}
    for value, _ in reversed(images.most_common()):
        if len(chosen) < most and not any(value in entries[name].pixels for name in chosen):
            shares = {
                name: one.pixels.get(value, 0) / (one.width * one.height) for name, one in entries.items()
            }
            chosen[max(shares, key=shares.__getitem__)] = None
    rest = [name for name in entries if name not in chosen]
    for labelled in (True, False):
        pool = [name for name in rest if bool(entries[name].present()) == labelled]
        room = min(most - len(chosen), len(pool))
        chosen |= dict.fromkeys(pool[place * len(pool) // room] for place in range(room))
    return sorted(chosen)


def _flow(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Places of words in lines of `room` pixels."""
    places, x, y = [], GAP, GAP
    for width in widths:
        if x > GAP and x + width > room:
            x, y = GAP, y + LINE
        places.append((x, y))
        x += width
    return places


def _tile(folder: Path, name: str, colours: Sequence[Colour]) -> Image.Image:
    """An image with its mask, drawn at four times the tile's size, so that thin objects keep some colour."""
    files = (folder / "images").glob(f"{glob.escape(name)}.*")
    try:
        image = Image.fromarray(load_image(next(file for file in files if file.stem == Path(name).name)))
    except TissError:  # whole, but damaged within: `tiss data verify` says so
        return Image.new("RGB", TILE, "red")
    mask = load_mask(folder / "masks" / f"{name}.png")
    mask = np.where(mask == IGNORE, len(colours) - 1, mask).astype(np.uint8)
    image.thumbnail((4 * TILE[0], 4 * TILE[1]))
    labels = np.array(Image.fromarray(mask).resize(image.size, Image.Resampling.NEAREST))
    return ImageOps.contain(overlay(np.array(image), labels, colours), TILE)
