"""The HTML report of finished runs: the story, tables, curves, predictions, feature maps, recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tiss.errors import TissError
from tiss.evaluation.scores import percent
from tiss.report.figures import last_confusions
from tiss.report.gallery import IGNORED_COLOUR, Gallery, Mask, collect_gallery, names_in, principal_colours
from tiss.report.html import embed, write_page
from tiss.report.paper import caption_of, fitting_tables, paper_table, sizes_of
from tiss.report.plots import (
    class_map,
    confusion_maps,
    difference_figure,
    forgetting_map,
    inline_svg,
    miou_over_steps,
)
from tiss.report.runs import Experiment, RunLike, Value, experiments, load_results
from tiss.report.similarity import experiment_similarity, similarity_figure, why_no_similarity
from tiss.report.tables import (
    averages_of,
    class_table,
    final_table,
    forgetting_table,
    mean_of,
    recipe_lines,
    step_table,
)

LARGEST = 224  # pixels of an embedded image's longer side
TILE = 92  # pixels of the width at which the page shows a mask
NAME = 9  # pixels of the class names in it
LEARNED = 10.0  # mIoU in % below which the first classes were hardly learned
KEPT, LOST = (
    0.05,
    0.4,
)  # a method keeps what it knew if it loses at most this share, and forgets beyond that one


def write_report(
    runs: Iterable[RunLike],
    out: str | Path,
    *,
    title: str = "Incremental semantic segmentation",
    gallery: int = 4,
    images: int = 0,
    root: str | None = None,
    device: str = "cpu",
) -> Path:
    """Writes the page about `runs` (folders or results) and returns its path.

    `gallery` test images are shown with every method's prediction and feature map after every step, and the
    similarity of patch tokens is measured over `images` of them, where the models and data of the runs are there;
    `root` says where the data are now, if they have moved.
    """
    sections = []
    for index, experiment in enumerate(experiments(load_results(runs))):
        section = section_of(experiment, f"e{index}")
        section |= _pictures(experiment, gallery, root, device)
        if images:
            measured = experiment_similarity(experiment, images, root, device)
            section["similarity"] = similarity_part(measured, f"s{index}")
            section["no_similarity"] = "" if measured else why_no_similarity(experiment)
        sections.append(section)
    return write_page(out, "report.html", title=title, sections=sections)


def section_of(experiment: Experiment, name: str, joint: Value | None = None) -> dict[str, Any]:
    """All that `experiment.html` shows of one experiment without its models; `name` keeps ids apart."""
    lost, matrices = forgetting_map(experiment), last_confusions(experiment)
    maps = {
        "IoU after the last step": class_map(experiment),
        "Points lost since a class's best step": lost,
        "Where the pixels of each step's classes went": confusion_maps(matrices, experiment.groups)
        if matrices
        else None,
    }
    several = len(experiment.series) > 2
    papers = fitting_tables([experiment])
    return {
        "title": experiment.title,
        "notes": [],
        **dict.fromkeys(("gallery", "missing", "similarity", "no_similarity", "seeds", "legend")),
        "story": story(experiment),
        "final": final_table(experiment, joint),
        "curves": inline_svg(miou_over_steps(experiment), f"{name}-curves"),
        "differences": _svg(difference_figure(experiment) if several else None, f"{name}-differences"),
        "steps": step_table(experiment),
        "maps": [(head, _svg(drawn, f"{name}-{i}")) for i, (head, drawn) in enumerate(maps.items()) if drawn],
        "classes": [table for table in (class_table(experiment), forgetting_table(experiment)) if table],
        "papers": [(caption_of(paper), paper_table(paper, [experiment])) for paper in papers],
        "source": sizes_of([experiment]),
        "recipe": recipe_lines(experiment.series),
        "settings": [
            (
                f"{one.label}, seed {', '.join(str(result.values['seed']) for result in one.results)}",
                yaml.safe_dump(dict(one.first.settings), sort_keys=False, allow_unicode=True),
            )
            for one in experiment.series
            if one.first.settings
        ],
    }


def _svg(drawn: Any, name: str) -> Any:
    return None if drawn is None else inline_svg(drawn, name)


def similarity_part(measured: Mapping[str, Any] | None, name: str) -> dict[str, Any] | None:
    """The similarity figure and its numbers as rows."""
    if measured is None:
        return None
    rows = []
    for method in measured["methods"]:
        for step in method["steps"]:
            pairs = [*(step["previous"] or (None, None)), *step["depth"]]
            cells = ["–" if value is None else f"{value:.3f}" for value in pairs]
            rows.append((method["label"], step["step"], *cells, percent(step["old"]), percent(step["new"])))
    return {
        "figure": inline_svg(similarity_figure(measured), name),
        "images": measured["images"],
        "rows": rows,
    }


def _pictures(experiment: Experiment, count: int, root: str | None, device: str) -> dict[str, Any]:
    """Predictions and feature maps, where models and data are there; else why there are none."""
    try:
        gallery = collect_gallery(experiment, count, root, device)
    except TissError as error:
        return {"missing": str(error)}
    if gallery is None:
        return {}
    seeds = sorted({int(series.first.values["seed"]) for series in experiment.series})
    several = any(len(series.results) > 1 for series in experiment.series)
    legend = [("", [(gallery.colours[0], gallery.classes[0]), (IGNORED_COLOUR, "ignored")])]
    legend += [
        (f"step {step}", [(gallery.colours[channel], gallery.classes[channel]) for channel in group])
        for step, group in enumerate(gallery.groups)
    ]
    return {
        "legend": legend,
        "gallery": [_shown(gallery, index) for index in range(len(gallery.ids))],
        "seeds": ", ".join(map(str, seeds)) if several else "",
    }


def _shown(gallery: Gallery, index: int) -> dict[str, Any]:
    """One image: what is given, and rows of masks and of feature maps by method."""
    features = {}
    for label, steps in gallery.features.items():
        colours = principal_colours([maps[index] for maps in steps])
        features[label] = [embed(np.round(255 * one).astype(np.uint8), label, LARGEST) for one in colours]
    return {
        "id": gallery.ids[index],
        "input": embed(gallery.images[index], "input", LARGEST),
        "labels": _mask(gallery, gallery.truth[index], "labels"),
        "masks": {
            label: [one and _mask(gallery, one[index], label) for one in masks]
            for label, masks in gallery.masks.items()
        },
        "features": features,
    }


def _mask(gallery: Gallery, mask: Mask, alt: str) -> dict[str, Any]:
    height = TILE * mask.shape[0] / mask.shape[1]
    return {
        "image": embed(gallery.paint(mask), alt, LARGEST),
        "names": names_in(mask, gallery.classes, NAME / height),
    }


def story(experiment: Experiment) -> list[tuple[str, str]]:
    """The headline as (kind, sentence): who forgets the first classes (bad), loses part (part), keeps them (good)."""
    get = mean_of("old", averages_of(experiment)[-1])
    found: dict[str, list[str]] = {kind: [] for kind in ("bad", "part", "good", "never", "bound")}
    for series in experiment.series:
        first, last = series.value(0, get), series.value(-1, get)
        if first is None or last is None or not series.first.finished:
            continue
        told = f"{series.label} ({percent(first.mean)} → {percent(last.mean)})"
        if series.at_once:
            found["bound"].append(f"{series.label} ({percent(last.mean)})")
        elif series.steps > 1:
            lost = 1 - last.mean / max(first.mean, 1e-9)
            kind = "bad" if lost > LOST else "part" if lost > KEPT else "good"
            found["never" if first.mean < LEARNED else kind].append(told)
    texts = {
        "bad": "{} forget{s} the first {n} classes.",
        "part": "{} lose{s} part of the first {n} classes.",
        "good": "{} keep{s} the first {n} classes.",
        "never": "{} hardly learned the first {n} classes: nothing to forget.",
        "bound": "Upper bound, trained on all classes at once: {}.",
    }
    return [
        (kind, texts[kind].format(_list(told), s="s" if len(told) == 1 else "", n=len(experiment.groups[0])))
        for kind, told in found.items()
        if told
    ]


def _list(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
