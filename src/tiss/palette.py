"""Class colours: the same class has the same colour in every picture, plot and page."""

from __future__ import annotations

import colorsys

Colour = tuple[int, int, int]

BACKGROUND_COLOUR: Colour = (40, 40, 40)
# Okabe and Ito's colours, told apart by colour-blind readers too
FIRST: tuple[Colour, ...] = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
    (148, 103, 189),
)
GOLDEN = 0.6180339887498949  # steps of the golden ratio keep hues apart however many there are


def class_colours(channels: int) -> list[Colour]:
    """RGB for channels 0..channels − 1: the background dark grey, then well-separated hues.

    >>> class_colours(2)
    [(40, 40, 40), (230, 159, 0)]
    """
    colours = [BACKGROUND_COLOUR, *FIRST]
    for index in range(len(colours), channels):
        hue = (index * GOLDEN) % 1.0
        saturation, value = (0.55, 0.95) if index % 2 else (0.9, 0.7)
        red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
        colours.append((round(red * 255), round(green * 255), round(blue * 255)))
    return colours[:channels]
