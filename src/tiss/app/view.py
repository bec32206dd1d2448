"""What the page shows, as HTML that carries its pictures within it: no address of a file ever leaves the server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tiss.evaluation.scores import percent
from tiss.palette import Colour
from tiss.user.drawing import colours_of, overlay, to_png

# Reads the class under the pointer from a hidden picture of class numbers, and writes its name below.
HOVER = """
const box = this, shown = box.querySelector('img.shown'), name = box.querySelector('.name');
if (!box.pixels) {
  const index = box.querySelector('img.index'), canvas = document.createElement('canvas');
  canvas.width = index.naturalWidth; canvas.height = index.naturalHeight;
  const context = canvas.getContext('2d', {willReadFrequently: true});
  context.drawImage(index, 0, 0);
  box.pixels = context; box.names = JSON.parse(box.dataset.names);
}
const place = shown.getBoundingClientRect(), canvas = box.pixels.canvas;
const x = Math.floor((event.clientX - place.left) / place.width * canvas.width);
const y = Math.floor((event.clientY - place.top) / place.height * canvas.height);
const inside = x >= 0 && y >= 0 && x < canvas.width && y < canvas.height;
name.textContent = inside ? box.names[box.pixels.getImageData(x, y, 1, 1).data[0]] : '';
"""
STYLE = """
#before:not(:has(figure)){display:none}
.tiss-view{margin:0;position:relative}.tiss-view img.shown{width:100%;display:block;image-rendering:auto}
.tiss-view img.index{display:none}.tiss-view .name{min-height:1.6em;font-weight:600}
.tiss-legend{display:flex;flex-wrap:wrap;gap:.2rem .9rem;padding:0;margin:.3rem 0;list-style:none}
.tiss-legend li{margin:0}
.tiss-legend span{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border:1px solid #0006}
"""


def view(
    title: str, image: np.ndarray, mask: np.ndarray, classes: Sequence[str], shown: Iterable[str]
) -> str:
    """A picture H × W × 3 with the classes of `shown` in their colours; the pointer over it names the class."""
    colours = colours_of(classes)
    wanted = set(shown)
    visible = np.array([name in wanted for name in classes] + [False] * (256 - len(classes)))
    drawn = overlay(image, np.where(visible[mask], mask, 0).astype(np.uint8), colours)
    names = escape(json.dumps(list(classes), ensure_ascii=False), quote=True)
    return (
        f'<figure class="tiss-view" data-names="{names}" onmousemove="{escape(HOVER, quote=True)}">'
        f"<figcaption>{escape(title)}</figcaption>"
        f'<img class="shown" alt="{escape(title)}" src="{data_uri(drawn)}">'
        f'<img class="index" alt="" src="{data_uri(Image.fromarray(mask))}">'
        f'<div class="name"></div>{legend(mask, classes, colours)}</figure>'
    )


def legend(mask: np.ndarray, classes: Sequence[str], colours: Sequence[Colour]) -> str:
    """The classes of a mask with the share of the picture that they cover, largest first."""
    shares = np.bincount(mask.ravel(), minlength=len(classes))[: len(classes)] / mask.size
    rows = []
    for channel in np.argsort(-shares, kind="stable"):
        if shares[channel] > 0:
            colour = f"rgb{tuple(colours[channel])}"
            rows.append(
                f'<li><span style="background:{colour}"></span>{escape(classes[channel])} {shares[channel]:.0%}</li>'
            )
    return f'<ul class="tiss-legend">{"".join(rows)}</ul>'


def data_uri(picture: Image.Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(to_png(picture)).decode()}"


def run_html(folder: Path) -> str | None:
    """Curves and tables of a run, or None where the folder is no finished run."""
    if not (folder / "results.json").is_file():
        return None
    from tiss.report.plots import inline_svg, miou_over_steps
    from tiss.report.render import to_html
    from tiss.report.runs import experiments, load_results
    from tiss.report.tables import report_tables

    parts = []
    for number, experiment in enumerate(experiments(load_results([folder]))):
        parts.append(inline_svg(miou_over_steps(experiment), f"app-{number}"))
        parts += [to_html(table) for table in report_tables(experiment)]
    return "".join(parts)


def history_html(record: Mapping[str, Any]) -> str:
    """The steps of an extended model as its own reports told them."""
    titles = (
        "step",
        "classes",
        "method",
        "pictures",
        "IoU of the new",
        "change of the old",
        "pixels as before",
    )
    rows = []
    for entry in record.get("history") or []:
        if not isinstance(entry, Mapping):
            continue
        change = entry.get("old_change")
        cells = (
            entry.get("step"),
            ", ".join(map(str, entry.get("classes") or [])),
            entry.get("method"),
            entry.get("train_pictures"),
            percent(entry.get("new_iou")),
            "–" if change is None else f"{change:+.1f}",
            percent(entry.get("pixels_as_before")),
        )
        rows.append(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>")
    head = "".join(f"<th>{title}</th>" for title in titles)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return curve_svg(record) + table if rows else "<p>This model does not say how it was made.</p>"


def curve_svg(record: Mapping[str, Any]) -> str:
    """IoU of each step's new classes and agreement with the model before it, step by step."""
    from matplotlib.figure import Figure

    from tiss.report.plots import inline_svg, style

    entries = [
        entry for entry in record.get("history") or [] if isinstance(entry, Mapping) and "step" in entry
    ]
    with style():
        drawn = Figure(figsize=(5, 2.6), layout="constrained")
        axis = drawn.subplots()
        for key, label in (("new_iou", "IoU of the new classes"), ("pixels_as_before", "pixels as before")):
            points = [(entry["step"], entry[key]) for entry in entries if entry.get(key) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", label=label)
        axis.set_xlabel("step")
        axis.set_ylabel("%")
        axis.set_ylim(0, 102)
        axis.set_xticks([entry["step"] for entry in entries])
        if axis.lines:
            axis.legend()
    return inline_svg(drawn, "app-history")
