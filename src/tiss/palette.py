"""Class colours: a class has the same colour in every image, plot and page, and in every model extended from it."""

from __future__ import annotations

import colorsys

Colour = tuple[int, int, int]

BACKGROUND_COLOUR: Colour = (40, 40, 40)
# The first three are Okabe and Ito's. Each further one is the colour farthest from all before it in OKLab, for normal
# and for red-green blind sight.
FIRST: tuple[Colour, ...] = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (0, 0, 255),
    (180, 0, 180),
    (0, 255, 150),
    (165, 60, 0),
    (255, 105, 165),
    (255, 195, 255),
    (15, 90, 135),
    (120, 105, 255),
    (255, 225, 0),
    (60, 90, 15),
    (255, 0, 0),
    (90, 30, 180),
    (240, 15, 255),
    (165, 105, 165),
    (150, 0, 90),
    (120, 195, 105),
    (135, 120, 45),
    (90, 225, 210),
    (255, 135, 255),
    (255, 165, 150),
    (135, 0, 255),
)
GOLDEN = 0.6180339887498949  # for more classes than that: steps of the golden ratio spread the hues


def class_colours(channels: int) -> list[Colour]:
    """RGB for channels 0..channels − 1: the background dark grey.

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
