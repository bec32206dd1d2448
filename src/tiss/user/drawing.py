"""Pictures for people: overlays with a legend, and rows of panels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tiss.palette import Colour, class_colours

MARGIN, LINE = 6, 16
PANEL = 256  # width of one panel in a row
INK, PAPER = (20, 20, 20), (255, 255, 255)


@cache
def _font() -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default()  # unpacks the font anew each time it is asked for


def colours_of(classes: Sequence[str]) -> list[Colour]:
    return class_colours(len(classes))


def overlay(
    image: np.ndarray, mask: np.ndarray, colours: Sequence[Colour], opacity: float = 0.55
) -> Image.Image:
    """The picture H × W × 3 with the mask's classes in their colours; background and 255 stay."""
    table = np.zeros((256, 3), np.float32)
    table[: len(colours)] = np.array(colours, np.float32)
    mixed = (1 - opacity) * image + opacity * table[mask]
    plain = (mask == 0) | (mask == 255)
    return Image.fromarray(np.where(plain[..., None], image, mixed).round().astype(np.uint8))


def with_legend(
    picture: Image.Image, mask: np.ndarray, classes: Sequence[str], colours: Sequence[Colour]
) -> Image.Image:
    """The picture with the classes of the mask named below it, largest first."""
    counts = np.bincount(mask.ravel(), minlength=256)[: len(classes)]
    shown = [
        int(channel) for channel in np.argsort(-counts, kind="stable") if counts[channel] and channel > 0
    ]
    places, height = _lay_out([classes[channel] for channel in shown], picture.width)
    canvas = Image.new("RGB", (picture.width, picture.height + height), PAPER)
    canvas.paste(picture, (0, 0))
    draw = ImageDraw.Draw(canvas)
    for channel, (x, y) in zip(shown, places, strict=True):
        top = picture.height + y
        draw.rectangle((x, top + 2, x + 10, top + 12), fill=colours[channel], outline=INK)
        draw.text((x + 14, top), classes[channel], fill=INK, font=_font())
    return canvas


def _lay_out(names: Sequence[str], width: int) -> tuple[list[tuple[int, int]], int]:
    """Where each name of a legend goes, line by line, and the legend's height."""
    font = _font()
    places: list[tuple[int, int]] = []
    x, y = MARGIN, MARGIN
    for name in names:
        wide = 14 + int(font.getlength(name)) + 2 * MARGIN
        if x > MARGIN and x + wide > width:
            x, y = MARGIN, y + LINE
        places.append((x, y))
        x += wide
    return places, y + LINE + MARGIN if names else 0


def mask_image(mask: np.ndarray, colours: Sequence[Colour]) -> Image.Image:
    """A palette picture whose pixel values are the class indices."""
    image = Image.fromarray(mask)
    image.putpalette([value for colour in colours for value in colour])
    return image


def panels(parts: Sequence[tuple[str, Image.Image]], width: int = PANEL) -> Image.Image:
    """Pictures side by side, each brought to `width`, with its title above."""
    scaled = [
        (title, part.resize((width, max(1, round(part.height * width / part.width)))))
        for title, part in parts
    ]
    height = LINE + max(part.height for _, part in scaled)
    canvas = Image.new("RGB", (len(scaled) * (width + MARGIN) - MARGIN, height), PAPER)
    draw = ImageDraw.Draw(canvas)
    for index, (title, part) in enumerate(scaled):
        x = index * (width + MARGIN)
        draw.text((x + 2, 2), title, fill=INK, font=_font())
        canvas.paste(part, (x, LINE))
    return canvas


def to_png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
