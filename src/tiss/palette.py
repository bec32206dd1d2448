"""Class colours: a class has the same colour in every image, plot and page, and in every model extended from it."""

import colorsys
from collections.abc import Sequence

import numpy as np
from PIL import Image

Colour = tuple[int, int, int]

BACKGROUND_COLOUR: Colour = (40, 40, 40)
# The first three are Okabe and Ito's. Each further one is the colour farthest from all before it in CIELAB, where
# distances for red-green blind sight count 2.6 times; tests/test_palette.py states how far that is.
FIRST = """
    e69f00 56b4e9 009e73 0000ff 961e96 b4001e d2ff00 f0d2b4 00ff78 0078ff ff78b4 00ffff
    96963c d200f0 ff0000 ff00b4 965a78 965a3c 5a00b4 fff05a d278ff 96f096 f09696 1e5a1e
"""
GOLDEN = 0.6180339887498949  # for more classes than that: steps of the golden ratio spread the hues


def class_colours(channels: int) -> list[Colour]:
    """RGB for channels 0..channels − 1: the background dark grey.

    >>> class_colours(2)
    [(40, 40, 40), (230, 159, 0)]
    """
    colours = [BACKGROUND_COLOUR, *((*bytes.fromhex(code),) for code in FIRST.split())]
    for index in range(len(colours), channels):
        hue = (index * GOLDEN) % 1.0
        saturation, value = (0.55, 0.95) if index % 2 else (0.9, 0.7)
        red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
        colours.append((round(red * 255), round(green * 255), round(blue * 255)))
    return colours[:channels]


def overlay(
    image: np.ndarray, mask: np.ndarray, colours: Sequence[Colour], opacity: float = 0.55
) -> Image.Image:
    """The image H × W × 3 with the mask's classes in their colours; background and 255 stay as they are."""
    table = np.zeros((256, 3), np.float32)
    table[: len(colours)] = np.array(colours, np.float32)
    mixed = (1 - opacity) * image + opacity * table[mask]
    plain = (mask == 0) | (mask == 255)
    return Image.fromarray(np.where(plain[..., None], image, mixed).round().astype(np.uint8))
