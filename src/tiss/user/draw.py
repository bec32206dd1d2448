"""Overlays with a legend, and rows of panels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tiss.engine.predictor import overlay
from tiss.palette import Colour

MARGIN, LINE = 6, 16
PANEL = 320  # width of one panel in a row
INK, PAPER = (20, 20, 20), (255, 255, 255)


def draw(
    image: np.ndarray,
    mask: np.ndarray,
    classes: Sequence[str],
    colours: Sequence[Colour],
    opacity: float = 0.55,
) -> Image.Image:
    """The image with the classes of the mask in their colours, named below it, largest first."""
    drawn = overlay(image, mask, colours, opacity)
    counts = np.bincount(mask.ravel(), minlength=256)[: len(classes)]
    shown = [int(c) for c in np.argsort(-counts, kind="stable") if counts[c] and c > 0]
    places, height = _lay_out([classes[channel] for channel in shown], drawn.width)
    canvas = Image.new("RGB", (drawn.width, drawn.height + height), PAPER)
    canvas.paste(drawn, (0, 0))
    pen = ImageDraw.Draw(canvas)
    for channel, (x, y) in zip(shown, places, strict=True):
        top = drawn.height + y
        pen.rectangle((x, top + 2, x + 10, top + 12), fill=colours[channel], outline=INK)
        pen.text((x + 14, top), classes[channel], fill=INK, font=_font())
    return canvas


def _lay_out(names: Sequence[str], width: int) -> tuple[list[tuple[int, int]], int]:
    """Where each name of a legend goes, line by line, and the legend's height."""
    places: list[tuple[int, int]] = []
    x, y = MARGIN, MARGIN
    for name in names:
        wide = 14 + int(_font().getlength(name)) + 2 * MARGIN
        if x > MARGIN and x + wide > width:
            x, y = MARGIN, y + LINE
        places.append((x, y))
        x += wide
    return places, y + LINE + MARGIN if names else 0


@cache
def _font() -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default()  # unpacks the font each time it is called


def to_panel(image: Image.Image, how: Image.Resampling = Image.Resampling.BICUBIC) -> Image.Image:
    """An image resized to the width of a panel, before a legend is drawn: its letters keep their size."""
    return image.resize((PANEL, max(1, round(image.height * PANEL / image.width))), how)


def side_by_side(panels: Sequence[tuple[str, Image.Image]]) -> Image.Image:
    """Panels in a row, each with its title above."""
    size = (len(panels) * (PANEL + MARGIN) - MARGIN, LINE + max(panel.height for _, panel in panels))
    canvas = Image.new("RGB", size, PAPER)
    pen = ImageDraw.Draw(canvas)
    for index, (title, panel) in enumerate(panels):
        x = index * (PANEL + MARGIN)
        pen.text((x + 2, 2), title, fill=INK, font=_font())
        canvas.paste(panel, (x, LINE))
    return canvas


def to_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
