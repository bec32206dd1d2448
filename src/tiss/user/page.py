"""The report of a comparison: text, JSON, and an HTML page with the images that changed most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from tiss.engine.predictor import Predictor
from tiss.evaluation.scores import percent
from tiss.files import atomic_folder, write_bytes, write_json, write_text
from tiss.palette import class_colours
from tiss.report.html import embed, write_page
from tiss.user.compare import ClassChange, Comparison, ImageSet, channel_table, describe, signed
from tiss.user.draw import draw, side_by_side, to_panel, to_png


def write_report(
    folder: Path,
    title: str,
    facts: Sequence[str],
    result: Comparison,
    drawn: Sequence[tuple[str, Image.Image]],
) -> None:
    """report.txt, report.json and report.html; `drawn` are images with their captions."""
    write_text(folder / "report.txt", "\n".join([*facts, "", *describe(result), ""]))
    write_json(folder / "report.json", result.to_json())
    lost = [one for one in result.old_classes if one.shrinks]
    tables = [areas_table(result), scores_table(result)] if result.old_classes else [first_table(result)]
    images = [(embed(image, caption), caption) for caption, image in drawn]
    values = {"facts": facts, "result": result, "lost": lost, "tables": tables, "images": images}
    write_page(folder / "report.html", "compare.html", title=title, **values)


def write_comparison(
    out: Path, title: str, result: Comparison, images: ImageSet, old: Predictor, new: Predictor
) -> None:
    """The report in a folder of its own, with a PNG for each of the worst images."""
    drawn = draw_worst(result, images, old, new)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        for number, (_, image) in enumerate(drawn, 1):
            write_bytes(folder / f"worst-{number}.png", to_png(image))
        write_report(folder, title, (), result, drawn)


Table = tuple[str, Sequence[str], Sequence[Sequence[str]], Mapping[tuple[int, int], str]]  # for parts.cells


def first_table(result: Comparison) -> Table:
    """A first model has nothing before it: only what it knows now."""
    return "Classes", ("class", "IoU"), [(one.name, percent(one.after)) for one in result.classes], {}


def scores_table(result: Comparison) -> Table:
    """One row per class that has labels."""
    found = [one for one in result.classes if one.before is not None or one.after is not None]
    rows = [
        (one.name, _kind(one), percent(one.before), percent(one.after), signed(one.change)) for one in found
    ]
    marks = {
        (row, 4): "better" if one.change >= 0 else "worse"
        for row, one in enumerate(found)
        if one.change is not None
    }
    return "IoU by labels", ("class", "", "IoU before", "IoU now", "change"), rows, marks


def areas_table(result: Comparison) -> Table:
    """One row per class of the old model, labelled or not: how much of all images it covers."""
    rows = [
        (
            *(one.name, _kind(one), percent(one.area_before), percent(one.area_after)),
            *(signed(one.area_change), percent(one.agreement)),
        )
        for one in result.old_classes
    ]
    marks = {
        (row, column): "worse"
        for row, one in enumerate(result.old_classes)
        if one.shrinks
        for column in (3, 4)
    }
    heads = ("class", "", "% of pixels before", "now", "change in %", "agreement of both models in %")
    return "Area of the old classes", heads, rows, marks


def _kind(one: ClassChange) -> str:
    return "" if one.kind == "old" else one.kind


def draw_worst(
    result: Comparison, images: ImageSet, old: Predictor, new: Predictor
) -> list[tuple[str, Image.Image]]:
    """A caption and a row of panels for each of the images that changed most."""
    places = {name: index for index, name in enumerate(images.names)}
    drawn = []
    for name, value in result.worst:
        image, label = images.read(places[name])
        caption = f"{name}: {value:.1f} % of its pixels {result.verb}"
        drawn.append((caption, _panels(image, label, images.space, old, new)))
    return drawn


def _panels(
    image: Tensor, label: Tensor | None, space: Sequence[str], old: Predictor, new: Predictor
) -> Image.Image:
    """The image, its labels, and what both models say, in the colours of one class list."""
    masks = {} if label is None else {"labels": label.numpy()}
    for title, predictor in (("before", old), ("now", new)):
        masks[title] = channel_table(predictor.classes, space)[predictor.one(image).numpy()]
    colours = class_colours(len(space))
    small = to_panel(Image.fromarray(image.permute(1, 2, 0).numpy()))
    parts = [("image", small)]
    for title, mask in masks.items():
        shown = to_panel(Image.fromarray(mask), Image.Resampling.NEAREST)
        parts.append((title, draw(np.asarray(small), np.asarray(shown), space, colours)))
    return side_by_side(parts)
