"""The figures of `tiss figure` as files, SVG for print and PNG for everything else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tiss.engine.run_folder import RunFolder
from tiss.errors import TissError, suggest
from tiss.files import write_json
from tiss.report.gallery import collect_gallery, feature_figure, gallery_figure
from tiss.report.plots import (
    class_map,
    confusion_maps,
    difference_figure,
    forgetting_map,
    miou_over_steps,
    save_figure,
)
from tiss.report.runs import Experiment
from tiss.report.similarity import experiment_similarity, similarity_figure, why_no_similarity

CHARTS = {
    "steps": miou_over_steps,
    "classes": class_map,
    "forgetting": forgetting_map,
    "differences": difference_figure,
}
KINDS = (*CHARTS, "confusion", "predictions", "features", "similarity")


def write_figures(
    experiments: Sequence[Experiment],
    folder: Path,
    kinds: Sequence[str] = KINDS,
    *,
    gallery: int = 4,
    images: int = 500,
    root: str | None = None,
    device: str = "cpu",
) -> list[Path]:
    """Writes figures into `folder`, named after experiment and kind; returns the files.

    `gallery` test images are shown with predictions and features; similarities are taken over `images` of them, and
    their numbers are written to a JSON file as well. A kind for which the runs lack something is left out; where only
    similarities were asked for and cannot be had, that is an error.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise TissError(suggest(kind, KINDS, "figure"))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for experiment in experiments:
        prefix = _prefix(experiment, experiments)
        for name, drawn in _figures(experiment, kinds, gallery, root, device):
            written += _save(drawn, folder / f"{prefix}-{name}")
        wanted = images and "similarity" in kinds
        measured = experiment_similarity(experiment, images, root, device) if wanted else None
        if measured is not None:
            numbers = folder / f"{prefix}-similarity.json"
            write_json(numbers, measured, indent=1)
            written += [*_save(similarity_figure(measured), numbers.with_suffix("")), numbers]
    if not written and images and list(kinds) == ["similarity"]:
        reasons = dict.fromkeys(why_no_similarity(experiment) for experiment in experiments)
        raise TissError(f"no similarity figure can be drawn from these runs: {'; '.join(reasons)}")
    return written


def _prefix(experiment: Experiment, all_of_them: Sequence[Experiment]) -> str:
    text = f"{experiment.data}-{experiment.task}-{experiment.setup}"
    if sum((one.data, one.task) == (experiment.data, experiment.task) for one in all_of_them) > 1:
        text += f"-{experiment.protocol}" + (f"-holdout{experiment.holdout:g}" if experiment.holdout else "")
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in text)


def _figures(
    experiment: Experiment, kinds: Sequence[str], count: int, root: str | None, device: str
) -> Iterator[tuple[str, Figure]]:
    for kind, draw in CHARTS.items():
        if kind in kinds and (drawn := draw(experiment)) is not None:
            yield kind, drawn
    if "confusion" in kinds and (matrices := last_confusions(experiment)):
        yield "confusion", confusion_maps(matrices, experiment.groups)
    if {"predictions", "features"} & set(kinds):
        gallery = collect_gallery(experiment, count, root, device, "features" in kinds)
        for index in range(0 if gallery is None else len(gallery.ids)):
            assert gallery is not None
            if "predictions" in kinds:
                yield f"predictions-{index}", gallery_figure(gallery, index)
            if gallery.features:
                yield f"features-{index}", feature_figure(gallery, index)


def _save(drawn: Figure, path: Path) -> list[Path]:
    return [save_figure(drawn, path.with_name(f"{path.name}.{suffix}")) for suffix in ("svg", "png")]


def last_confusions(experiment: Experiment) -> list[tuple[str, np.ndarray]]:
    """The last step's confusion matrix of each method, summed over its seeds, where its run folders are there."""
    found = []
    for series in experiment.series:
        runs = [result.folder for result in series.results if result.folder is not None]
        folders = [RunFolder(run).step(series.steps - 1) for run in runs]
        if len(folders) == len(series.results) and all(folder.is_complete for folder in folders):
            matrices = [folder.confusion().numpy() for folder in folders]
            if any(len(matrix) != series.first.values["steps"][-1]["seen"] for matrix in matrices):
                raise TissError(
                    f"{folders[0].path}: its confusion matrix and results.json disagree on the classes"
                )
            found.append((series.label, np.sum(matrices, axis=0)))
    return found
