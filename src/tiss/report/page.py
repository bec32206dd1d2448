"""One self-contained HTML page about finished runs: the story, tables, curves, predictions, recipe."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path

import yaml

from tiss import __version__
from tiss.errors import TissError
from tiss.files import write_text
from tiss.report.confusion import confusion_maps, last_confusions
from tiss.report.features import gallery_features
from tiss.report.gallery import Gallery, collect_gallery
from tiss.report.paper import caption_of
from tiss.report.paper_tables import fitting_tables, paper_table
from tiss.report.pictures import feature_maps, predictions, strip
from tiss.report.plots import class_map, forgetting_map, inline_svg, miou_over_steps
from tiss.report.recipe import recipe_lines
from tiss.report.render import to_html
from tiss.report.runs import Experiment, RunLike, experiments, load_results
from tiss.report.similarity import experiment_similarity, similarity_figure, why_no_similarity
from tiss.report.sizes import picture_sizes
from tiss.report.story import MEASURE, story
from tiss.report.style import STYLE
from tiss.report.tables import class_table, final_table, forgetting_table, step_table


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

    `pictures` test pictures are shown with every method's prediction and feature map after every step, and the
    similarity of patch tokens is measured over `images` of them, where the runs' models and data are at hand; `root`
    says where the data lie now, if they have moved.
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
        predictions(gallery) + source(experiment) + which_seed(experiment) if gallery else missing,
        feature_maps(gallery, gallery_features(experiment, gallery, root, device)) if gallery else "",
        classes(experiment, index),
        similarity(experiment, index, images, root, device),
        paper(experiment),
        recipe(experiment),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def hero(experiment: Experiment, gallery: Gallery | None) -> str:
    """The story in words and in one picture: what each method sees after the last step."""
    sentences = "".join(f'<p class="{kind}">{html.escape(text)}</p>' for kind, text in story(experiment))
    if not sentences:
        return ""
    shown = "" if gallery is None else strip(gallery)
    return f'<div class="hero">{sentences}<p class="note">{MEASURE}</p>{shown}</div>'


def source(experiment: Experiment) -> str:
    """The caption under a figure that says how large the pictures were, where the runs know it."""
    sizes = picture_sizes([experiment])
    return f'<p class="note">{html.escape(sizes[0].upper() + sizes[1:])}.</p>' if sizes else ""


def curves(experiment: Experiment, index: int) -> str:
    drawn = inline_svg(miou_over_steps(experiment), f"curves{index}")
    return f'<div class="figure">{drawn}</div>{source(experiment)}'


def classes(experiment: Experiment, index: int) -> str:
    """Class by class: IoU, points lost, and where the pixels went."""
    figures = [("IoU after the last step", inline_svg(class_map(experiment), f"iou{index}"))]
    lost = forgetting_map(experiment)
    if lost is not None:
        figures.append(("Points lost since a class's best step", inline_svg(lost, f"lost{index}")))
    matrices = last_confusions(experiment)
    if matrices:
        drawn = confusion_maps(matrices, experiment.groups)
        title = "Where the pixels of each step's classes went"
        figures.append((title, inline_svg(drawn, f"confusion{index}")))
    blocks = [f'<div class="figure"><h4>{html.escape(name)}</h4>{svg}</div>' for name, svg in figures]
    parts = [f'<h3>Class by class</h3><div class="figures">{"".join(blocks)}</div>{source(experiment)}']
    tables = [class_table(experiment), forgetting_table(experiment)]
    inside = "".join(to_html(table) for table in tables if table is not None)
    return "\n".join([*parts, f"<details><summary>The same as tables</summary>{inside}</details>"])


def similarity(experiment: Experiment, index: int, images: int, root: str | None, device: str) -> str:
    """The paper's similarity figure, where it was asked for; where it cannot be drawn, why."""
    if not images:
        return ""
    head = "<h3>Similarity of patch tokens</h3>"
    measured = experiment_similarity(experiment, images, root, device)
    if measured is None:
        return f'{head}<p class="note">Not shown: {html.escape(why_no_similarity(experiment))}.</p>'
    drawn = inline_svg(similarity_figure(measured), f"similarity{index}")
    note = f"Mean |cos| of patch tokens over {measured.images} test pictures."
    shown = f'{head}<div class="figure">{drawn}</div><p class="note">{note}</p>'
    return shown + source(experiment) + which_seed(experiment)


def which_seed(experiment: Experiment) -> str:
    """Where there are several seeds, of which one models were asked."""
    if all(len(series.results) == 1 for series in experiment.series):
        return ""
    seeds = sorted({int(series.first.values["seed"]) for series in experiment.series})
    return f'<p class="note">Of the first seed only: {", ".join(map(str, seeds))}.</p>'


def paper(experiment: Experiment) -> str:
    """The paper's tables that this experiment has a place in: the first open, the others by their captions."""
    names = fitting_tables([experiment])
    if not names:
        return ""
    first, *rest = [to_html(paper_table(name, [experiment])) for name in names]
    folded = "".join(
        f"<details><summary>{html.escape(caption_of(name))}</summary>{table}</details>"
        for name, table in zip(names[1:], rest, strict=True)
    )
    return f"<h3>Beside the paper's figures</h3>{first}{folded}"


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
