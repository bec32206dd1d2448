"""A sheet of images with their labels in colour: what was understood, at a glance."""

import glob
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from tiss.data.base import IGNORE, Entry
from tiss.data.images import load_image, load_mask
from tiss.errors import TissError
from tiss.palette import Colour, class_colours, overlay

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
