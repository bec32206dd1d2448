"""Self-contained HTML pages: one jinja2 environment, one style sheet, one base template.

A page is a template in `report/templates/` that extends `base.html` and fills its block `body`:

    {% extends "base.html" %}
    {% block body %}
    {{ parts.cells(("class", "IoU"), rows, {(0, 1): "better"}) }}
    {{ parts.tile(image, "street.jpg") }}
    {% endblock %}

`write_page(path, "compare.html", title="...", rows=rows, image=embed(pixels, "street.jpg"))` writes it. Values are
escaped; what `embed` and `plots.inline_svg` return is not. `parts.html` holds the macros that pages share. A template
that extends nothing is a fragment for another page, which puts `stylesheet()` into its head and the fragment into an
element of the class `tiss`: no rule of the style sheet reaches outside of that.
"""

from __future__ import annotations

import base64
import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape
from PIL import Image

from tiss import __version__
from tiss.evaluation.scores import percent
from tiss.files import write_text


def render(template: str, **values: Any) -> str:
    """The text of a template from `report/templates/`; a name that it lacks is an error."""
    return _environment().get_template(template).render(values)


def parts() -> Any:
    """The macros of `parts.html` as functions."""
    return _environment().globals["parts"]


def write_page(path: str | Path, template: str, **values: Any) -> Path:
    """Renders a template into a file and returns its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(template, **values))
    return path


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tiss.report"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"style": Markup(stylesheet()), "version": __version__}
    environment.filters |= {"percent": percent}
    environment.globals["parts"] = environment.get_template("parts.html").module
    return environment


@cache
def stylesheet() -> str:
    """The style sheet of all pages, light and dark; it applies inside of elements of the class `tiss`."""
    return Path(__file__).with_name("templates").joinpath("style.css").read_text(encoding="utf-8")


def embed(image: Image.Image | np.ndarray, alt: str = "", largest: int | None = None) -> Markup:
    """An <img> that holds its pixels: few colours as PNG, photos as JPEG; `largest` limits the longer side."""
    if not isinstance(image, Image.Image):
        image = Image.fromarray(np.ascontiguousarray(image))
    flat = image.getcolors(256) is not None
    if largest is not None and max(image.size) > largest:
        factor = largest / max(image.size)
        size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
        image = image.resize(size, Image.Resampling.NEAREST if flat else Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    if flat or max(image.size) <= 96:
        image.save(stream, "PNG", optimize=True)
    else:
        image.convert("RGB").save(stream, "JPEG", quality=88)
    kind = "png" if flat or max(image.size) <= 96 else "jpeg"
    data = base64.b64encode(stream.getvalue()).decode()
    return Markup(f'<img src="data:image/{kind};base64,{data}" alt="{escape(alt)}">')
