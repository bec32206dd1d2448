"""One self-contained HTML page about finished runs: the story, tables, curves, predictions, recipe."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from tiss import __version__
from tiss.errors import TissError
from tiss.evaluation.scores import percent
from tiss.files import write_text
from tiss.palette import Colour
from tiss.reporting.gallery import Gallery, Mask, collect_gallery
from tiss.reporting.paper_tables import fitting_tables, paper_table
from tiss.reporting.plots import (
    class_map,
    confusion_maps,
    forgetting_map,
    inline_svg,
    last_confusions,
    miou_over_steps,
)
from tiss.reporting.recipe import recipe_lines
from tiss.reporting.render import to_html
from tiss.reporting.runs import Experiment, RunLike, experiments, load_results
from tiss.reporting.similarity import experiment_similarity, similarity_figure
from tiss.reporting.style import STYLE
from tiss.reporting.tables import averages_of, class_table, figure, final_table, forgetting_table, step_table

LARGEST = 224  # pixels of a picture's longer side in the page; larger ones are brought down
LITTLE = 5.0  # mIoU in % below which the first classes were not learnt to speak of
LOSS = 0.4  # a method forgets, in the headline's words, when it loses this share of what it knew


def write_report(
    runs: Iterable[RunLike],
    out: str | Path,
    *,
    title: str = "Incremental semantic segmentation",
    pictures: int = 4,
    images: int = 0,
    root: str | None = None,
    device: str = "cpu",
) -> Path:
    """Writes the page about `runs` (folders or results) and returns its path.

    `pictures` test pictures are shown with every method's prediction after every step, and the similarity of
    patch tokens is measured over `images` of them, where the runs' models and data are at hand; `root` says
    where the data lie now, if they have moved.
    """
    found = experiments(load_results(runs))
    sections = [section(one, index, pictures, images, root, device) for index, one in enumerate(found)]
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, document(title, sections))
    return out


def document(title: str, sections: list[str]) -> str:
    """The whole page; everything it needs is inside."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><main>",
            f"<h1>{html.escape(title)}</h1>",
            *sections,
            f"<footer>tiss {__version__}</footer></main></body></html>\n",
        ]
    )


def section(
    experiment: Experiment,
    index: int,
    pictures: int = 0,
    images: int = 0,
    root: str | None = None,
    device: str = "cpu",
) -> str:
    """All that the page says about one experiment."""
    gallery, missing = None, ""
    try:
        gallery = collect_gallery(experiment, pictures, root, device) if pictures else None
    except TissError as error:
        missing = f'<p class="note">No predictions shown: {html.escape(str(error))}</p>'
    parts = [
        f"<section><h2>{html.escape(experiment.title)}</h2>",
        hero(experiment, gallery),
        to_html(final_table(experiment)),
        "<h3>Step by step</h3>",
        curves(experiment, index),
        f"<details><summary>The same as a table</summary>{to_html(step_table(experiment))}</details>",
        predictions(gallery) if gallery else missing,
        classes(experiment, index),
        similarity(experiment, index, images, root, device),
        paper(experiment),
        recipe(experiment),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def story(experiment: Experiment) -> list[tuple[str, str]]:
    """The headline: who forgets the first classes and who does not, as (kind, sentence)."""
    average = averages_of(experiment)[-1]
    forgets, keeps, bounds, ignorant = [], [], [], []
    for series in experiment.series:
        first, last = (series.value(step, figure("old", average)) for step in (0, -1))
        if first is None or last is None:
            continue
        if series.at_once:
            bounds.append(f"{series.label} training on everything at once reaches {percent(last.mean)}.")
        elif series.steps > 1 and first.mean < LITTLE:
            ignorant.append(f"{series.label} ({percent(first.mean)} → {percent(last.mean)})")
        elif series.steps > 1 and last.mean < (1 - LOSS) * first.mean:
            forgets.append(f"{series.label} ({percent(first.mean)} → {percent(last.mean)})")
        elif series.steps > 1:
            keeps.append(f"{series.label} ({percent(first.mean)} → {percent(last.mean)})")
    count = len(experiment.groups[0])
    told = []
    if forgets:
        verb = "forgets" if len(forgets) == 1 else "forget"
        told.append(("bad", f"{_list(forgets)} {verb} the first {count} classes."))
    if keeps:
        verb = "keeps" if len(keeps) == 1 else "keep"
        told.append(
            (
                "good",
                f"{_list(keeps)} {verb} them."
                if forgets
                else f"{_list(keeps)} {verb} the first {count} classes.",
            )
        )
    if ignorant:
        told.append(
            ("bound", f"{_list(ignorant)} hardly learnt the first {count} classes: nothing to forget.")
        )
    return told + [("bound", text[0].upper() + text[1:]) for text in bounds]


def _list(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def hero(experiment: Experiment, gallery: Gallery | None) -> str:
    """The story in words and in one picture: what each method sees after the last step."""
    sentences = "".join(f'<p class="{kind}">{html.escape(text)}</p>' for kind, text in story(experiment))
    if not sentences:
        return ""
    measure = "mIoU of the classes of step 0, without the background: after step 0 → after the last step."
    shown = ""
    if gallery is not None:
        last = [(label, masks[-1]) for label, masks in gallery.masks.items() if masks[-1] is not None]
        tiles = [tile("input", gallery.images[0]), tile("truth", gallery.paint(gallery.truth[0]))]
        tiles += [tile(label, gallery.paint(masks[0])) for label, masks in last if masks is not None]
        shown = f'<div class="strip">{"".join(tiles)}</div>'
    return f'<div class="hero">{sentences}<p class="note">{measure}</p>{shown}</div>'


def curves(experiment: Experiment, index: int) -> str:
    return f'<div class="figure">{inline_svg(miou_over_steps(experiment), f"curves{index}")}</div>'


def predictions(gallery: Gallery) -> str:
    """For each picture: input and truth, then a row a method and a column a step."""
    head = "".join(f"<th>step {step}</th>" for step in range(gallery.steps))
    blocks = []
    for picture, id in enumerate(gallery.ids):
        rows = []
        for label, masks in gallery.masks.items():
            cells = "".join(
                "<td></td>" if one is None else f"<td>{image(gallery.paint(one[picture]), label)}</td>"
                for one in masks
            )
            rows.append(f'<tr><th class="label">{html.escape(label)}</th>{cells}</tr>')
        given = tile("input", gallery.images[picture]) + tile("truth", gallery.paint(gallery.truth[picture]))
        body = f"<tbody>{''.join(rows)}</tbody>"
        table = f'<table class="masks"><thead><tr><th></th>{head}</tr></thead>{body}</table>'
        blocks.append(
            f'<div class="picture" title="{html.escape(id)}"><div class="given">{given}</div>{table}</div>'
        )
    return (
        f'<h3>Predictions after each step</h3>{legend(gallery)}<div class="pictures">{"".join(blocks)}</div>'
    )


def legend(gallery: Gallery) -> str:
    """The classes' colours, by the step that brings them."""
    parts = [chip(gallery.colours[0], gallery.classes[0]), chip((200, 200, 200), "ignored")]
    for step, group in enumerate(gallery.groups):
        chips = "".join(chip(gallery.colours[channel], gallery.classes[channel]) for channel in group)
        parts.append(f'<span class="step">step {step}</span>{chips}')
    return f'<p class="legend">{"".join(parts)}</p>'


def chip(colour: Colour, name: str) -> str:
    return f'<span class="chip"><i style="background:rgb{colour}"></i>{html.escape(name)}</span>'


def classes(experiment: Experiment, index: int) -> str:
    """Class by class: IoU, points lost, and where the pixels went."""
    figures = [("IoU after the last step", inline_svg(class_map(experiment), f"iou{index}"))]
    lost = forgetting_map(experiment)
    if lost is not None:
        figures.append(("Points lost since a class's best step", inline_svg(lost, f"lost{index}")))
    matrices = last_confusions(experiment)
    if matrices:
        drawn = confusion_maps(matrices, experiment.groups)
        title = "Where the pixels of each step's classes went, in %"
        figures.append((title, inline_svg(drawn, f"confusion{index}")))
    blocks = [f'<div class="figure"><h4>{html.escape(name)}</h4>{svg}</div>' for name, svg in figures]
    parts = [f'<h3>Class by class</h3><div class="figures">{"".join(blocks)}</div>']
    tables = [class_table(experiment), forgetting_table(experiment)]
    inside = "".join(to_html(table) for table in tables if table is not None)
    return "\n".join([*parts, f"<details><summary>The same as tables</summary>{inside}</details>"])


def similarity(experiment: Experiment, index: int, images: int, root: str | None, device: str) -> str:
    """The paper's similarity figure, where it was asked for."""
    measured = experiment_similarity(experiment, images, root, device) if images else None
    if measured is None:
        return ""
    drawn = inline_svg(similarity_figure(measured), f"similarity{index}")
    note = (
        f"Mean |cos| of patch tokens over {measured.images} test pictures; one point a step, larger is later."
    )
    return f'<h3>Similarity of patch tokens</h3><div class="figure">{drawn}</div><p class="note">{note}</p>'


def paper(experiment: Experiment) -> str:
    """The paper's tables that this experiment has a place in."""
    tables = [to_html(paper_table(name, [experiment])) for name in fitting_tables([experiment])]
    if not tables:
        return ""
    rest = "".join(f"<details><summary>Class by class</summary>{table}</details>" for table in tables[1:])
    return f"<h3>Beside the paper's figures</h3>{tables[0]}{rest}"


def recipe(experiment: Experiment) -> str:
    """The settings: those that matter in a line, and who differs; all of them folded away, run by run."""
    blocks = []
    for series in experiment.series:
        settings = dict(series.first.settings)
        if settings:
            seeds = ", ".join(str(result.values["seed"]) for result in series.results)
            text = html.escape(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
            label = html.escape(f"{series.label}, seed {seeds}")
            blocks.append(
                f"<details><summary>{label}: complete settings</summary><pre>{text}</pre></details>"
            )
    if not blocks:
        return ""
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in recipe_lines(experiment.series))
    return f"<h3>Recipe</h3>{lines}{''.join(blocks)}"


def tile(caption: str, pixels: Mask) -> str:
    return f"<figure>{image(pixels, caption)}<figcaption>{html.escape(caption)}</figcaption></figure>"


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
