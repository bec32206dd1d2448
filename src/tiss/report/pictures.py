"""Pictures inside of the page: predictions and feature maps, a row a method and a column a step."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from tiss.palette import Colour
from tiss.report.features import Floats, principal_colours
from tiss.report.gallery import Gallery, Mask
from tiss.report.names import names_in

LARGEST = 224  # pixels of a picture's longer side in the page; larger ones are brought down
TILE, WIDE = 84, 132  # pixels that the style sheet gives a picture in a table and one in a row
TEXT = 10  # pixels of the names inside of them
FEATURES = (
    "The encoder's last feature map. Red, green and blue are the first three principal components of the map after "
    "step 0, for all steps of a method: where colours stay, the encoder sees the same."
)


def predictions(gallery: Gallery) -> str:
    """For each picture: input and truth, then each method's masks, classes named inside of their regions."""
    blocks = []
    for picture in range(len(gallery.ids)):
        rows = {
            label: ["" if one is None else mask_image(gallery, one[picture], label, TILE) for one in masks]
            for label, masks in gallery.masks.items()
        }
        blocks.append(_block(gallery, picture, rows))
    body = f'<div class="pictures">{"".join(blocks)}</div>'
    return f"<h3>Predictions after each step</h3>{legend(gallery)}{body}"


def feature_maps(gallery: Gallery, features: Mapping[str, Sequence[Sequence[Floats]]]) -> str:
    """For each picture: input and truth, then what each method's encoder sees, as colours."""
    if not features:
        return ""
    blocks = []
    for picture in range(len(gallery.ids)):
        rows = {}
        for label, maps in features.items():
            colours = principal_colours(maps[picture])
            rows[label] = [image(np.round(255 * one).astype(np.uint8), label) for one in colours]
        blocks.append(_block(gallery, picture, rows))
    body = f'<div class="pictures">{"".join(blocks)}</div>'
    return f'<h3>Feature maps after each step</h3><p class="note">{FEATURES}</p>{body}'


def _block(gallery: Gallery, picture: int, rows: Mapping[str, Sequence[str]]) -> str:
    """One picture: what is given at the left, beside it a table with a row a method and a column a step."""
    head = "".join(f"<th>step {step}</th>" for step in range(gallery.steps))
    lines = []
    for label, shown in rows.items():
        cells = "".join(f"<td>{one}</td>" for one in shown)
        lines.append(f'<tr><th class="label">{html.escape(label)}</th>{cells}</tr>')
    given = tile("input", image(gallery.images[picture], "input"))
    given += tile("truth", mask_image(gallery, gallery.truth[picture], "truth", TILE))
    body = f"<tbody>{''.join(lines)}</tbody>"
    table = f'<table class="masks"><thead><tr><th></th>{head}</tr></thead>{body}</table>'
    title = html.escape(gallery.ids[picture])
    return f'<div class="picture" title="{title}"><div class="given">{given}</div>{table}</div>'


def strip(gallery: Gallery, picture: int = 0) -> str:
    """One picture in a row: input, truth, and what each method makes of it after the last step."""
    tiles = [tile("input", image(gallery.images[picture], "input"))]
    tiles.append(tile("truth", mask_image(gallery, gallery.truth[picture], "truth", WIDE)))
    for label, masks in gallery.masks.items():
        if masks[-1] is not None:
            tiles.append(tile(label, mask_image(gallery, masks[-1][picture], label, WIDE)))
    return f'<div class="strip">{"".join(tiles)}</div>'


def legend(gallery: Gallery) -> str:
    """The classes' colours, by the step that brings them."""
    parts = [chip(gallery.colours[0], gallery.classes[0]), chip((200, 200, 200), "ignored")]
    for step, group in enumerate(gallery.groups):
        chips = "".join(chip(gallery.colours[channel], gallery.classes[channel]) for channel in group)
        parts.append(f'<span class="step">step {step}</span>{chips}')
    return f'<p class="legend">{"".join(parts)}</p>'


def chip(colour: Colour, name: str) -> str:
    return f'<span class="chip"><i style="background:rgb{colour}"></i>{html.escape(name)}</span>'


def mask_image(gallery: Gallery, mask: Mask, text: str, width: int) -> str:
    """A mask in its colours, shown `width` pixels wide, with the names that fit into its regions."""
    height = width * mask.shape[0] / mask.shape[1]
    names = "".join(
        f'<b style="left:{100 * name.x:.0f}%;top:{100 * name.y:.0f}%">{html.escape(name.text)}</b>'
        for name in names_in(mask, gallery.classes, TEXT / height)
    )
    return f'<div class="mask">{image(gallery.paint(mask), text)}{names}</div>'


def tile(caption: str, shown: str) -> str:
    return f"<figure>{shown}<figcaption>{html.escape(caption)}</figcaption></figure>"


def image(pixels: Mask, text: str) -> str:
    """An <img> with the pixels inside: few colours as PNG, photographs as JPEG."""
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    flat = picture.getcolors(256) is not None
    if max(picture.size) > LARGEST:
        factor = LARGEST / max(picture.size)
        size = (max(1, round(picture.width * factor)), max(1, round(picture.height * factor)))
        picture = picture.resize(size, Image.Resampling.NEAREST if flat else Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    if flat:
        picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=256).save(stream, "PNG", optimize=True)
    elif max(picture.size) <= 96:
        picture.save(stream, "PNG", optimize=True)
    else:
        picture.save(stream, "JPEG", quality=88)
    kind = "jpeg" if stream.getvalue()[:2] == b"\xff\xd8" else "png"
    data = base64.b64encode(stream.getvalue()).decode()
    return f'<img src="data:image/{kind};base64,{data}" alt="{html.escape(text)}">'
