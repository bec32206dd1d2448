"""A report as one HTML page that needs no other file and no network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

import numpy as np
from PIL import Image
from torch import Tensor

from tiss.evaluation.scores import percent
from tiss.user.comparison import Comparison, Material
from tiss.user.drawing import colours_of, overlay, panels, to_png, with_legend
from tiss.user.segment import Segmenter

STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}
td,th{padding:.2rem .8rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}img{max-width:100%}figure{margin:1.5rem 0}figcaption{color:#555}
.better{color:#06703a}.worse{color:#a3260c}"""


def worst_pictures(
    result: Comparison, material: Material, old: Segmenter, new: Segmenter
) -> list[tuple[str, Image.Image]]:
    """A caption and a row of panels for each of the pictures that changed most."""
    places = {name: index for index, name in enumerate(material.names)}
    what = "lost" if result.judged else "changed"
    shown = []
    for name, value in result.worst:
        image, label = material.read(places[name])
        shown.append((f"{name}: {value:.1f} % of its pixels {what}", _row(image, label, material, old, new)))
    return shown


def _row(
    image: Tensor, label: Tensor | None, material: Material, old: Segmenter, new: Segmenter
) -> Image.Image:
    pixels = image.permute(1, 2, 0).numpy()
    parts = [("picture", Image.fromarray(pixels))]
    if label is not None:
        parts.append(("labels", _drawn(pixels, label.numpy(), material.space)))
    parts.append(("before", _drawn(pixels, old.one(image).numpy(), old.model.classes)))
    parts.append(("now", _drawn(pixels, new.one(image).numpy(), new.model.classes)))
    return panels(parts)


def _drawn(pixels: np.ndarray, mask: np.ndarray, classes: Sequence[str]) -> Image.Image:
    colours = colours_of(classes)
    return with_legend(overlay(pixels, mask, colours), np.where(mask == 255, 0, mask), classes, colours)


def render(
    title: str, facts: Sequence[str], result: Comparison, pictures: Sequence[tuple[str, Image.Image]]
) -> str:
    """The page's text."""
    body = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(fact)}</p>" for fact in facts), _table(result)]
    same = "" if result.same is None else f"; {percent(result.same)} % of the pixels as before"
    body.append(f"<p>On {result.pictures} pictures{same}.</p>")
    if result.broken:
        body += [
            "<p>Could not be read:</p><ul>",
            *(f"<li>{escape(line)}</li>" for line in result.broken),
            "</ul>",
        ]
    if pictures:
        body.append("<h2>Largest changes</h2>")
    for caption, picture in pictures:
        data = base64.b64encode(to_png(picture)).decode()
        image = f'<img alt="" src="data:image/png;base64,{data}">'
        body.append(f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def _table(result: Comparison) -> str:
    """A row a class; of a first model, which has nothing before it, only what it knows now."""
    first = all(one.before is None and one.agreement is None for one in result.classes)
    titles = (
        ("class", "IoU") if first else ("class", "", "IoU before", "IoU now", "change", "as the old model")
    )
    head = f"<tr>{''.join(f'<th>{title}</th>' for title in titles)}</tr>"
    rows = []
    for one in result.classes:
        if first:
            rows.append(f"<tr><td>{escape(one.name)}</td><td>{percent(one.after)}</td></tr>")
            continue
        change = one.change
        mark = "" if change is None else f' class="{"better" if change >= 0 else "worse"}"'
        cells = [percent(one.before), percent(one.after)]
        shown = "–" if change is None else f"{change:+.1f}"
        agreement = "–" if one.agreement is None else f"{percent(one.agreement)} %"
        kind = {"new": "new", "gone": "gone"}.get(one.kind, "")
        rows.append(
            f"<tr><td>{escape(one.name)}</td><td>{kind}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}"
            f"<td{mark}>{shown}</td><td>{agreement}</td></tr>"
        )
    return f"<table>{head}{''.join(rows)}</table>"
