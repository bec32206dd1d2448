"""Every figure of a report as files, SVG for print and PNG for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from tiss.errors import TissError, suggest
from tiss.files import write_json
from tiss.report.confusion import confusion_maps, last_confusions
from tiss.report.features import feature_figure, gallery_features
from tiss.report.gallery import collect_gallery, gallery_figure
from tiss.report.plots import class_map, forgetting_map, miou_over_steps, save_figure
from tiss.report.runs import Experiment
from tiss.report.similarity import experiment_similarity, similarity_figure, why_no_similarity

KINDS = {
    "steps": "mIoU of old, new and all classes over the steps, by method",
    "classes": "IoU of every class after the last step, by method",
    "forgetting": "points each class lost since its best step, as a heat map",
    "confusion": "confusion between background, old and new classes",
    "predictions": "predictions step by step for several methods",
    "features": "the encoder's last feature map, step by step",
    "similarity": "S positive and S negative of patch tokens against old and new mIoU",
}


def figures_of(
    experiment: Experiment,
    kinds: Sequence[str],
    *,
    pictures: int = 4,
    root: str | None = None,
    device: str = "cpu",
) -> Iterator[tuple[str, Figure]]:
    """The figures of some kinds with their names; a kind for which the runs lack something gives none.

    `pictures` is for predictions and features. The similarity figure has its own function: it has numbers to keep.
    """
    if "steps" in kinds:
        yield "steps", miou_over_steps(experiment)
    if "classes" in kinds:
        yield "classes", class_map(experiment)
    if "forgetting" in kinds and (lost := forgetting_map(experiment)) is not None:
        yield "forgetting", lost
    if "confusion" in kinds and (matrices := last_confusions(experiment)):
        yield "confusion", confusion_maps(matrices, experiment.groups)
    yield from _model_figures(experiment, kinds, pictures, root, device)


def _model_figures(
    experiment: Experiment, kinds: Sequence[str], pictures: int, root: str | None, device: str
) -> Iterator[tuple[str, Figure]]:
    """Predictions and feature maps, picture by picture, where the models are at hand."""
    wanted = pictures and ("predictions" in kinds or "features" in kinds)
    gallery = collect_gallery(experiment, pictures, root, device) if wanted else None
    if gallery is None:
        return
    features = gallery_features(experiment, gallery, root, device) if "features" in kinds else {}
    for index in range(len(gallery.ids)):
        if "predictions" in kinds:
            yield f"predictions-{index}", gallery_figure(gallery, index)
        if features:
            yield f"features-{index}", feature_figure(gallery, features, index)


def write_figures(
    experiments: Sequence[Experiment],
    folder: Path,
    kinds: Sequence[str] = tuple(KINDS),
    *,
    pictures: int = 4,
    images: int = 500,
    root: str | None = None,
    device: str = "cpu",
) -> list[Path]:
    """Writes figures into `folder`, named after experiment and kind; returns the files.

    `images` is how many test pictures the similarities are taken over; their numbers go into a JSON file as well. Where
    only they were asked for and cannot be had, that is an error.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise TissError(suggest(kind, KINDS, "figure"))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for experiment in experiments:
        prefix = f"{experiment.data}-{experiment.task}-{experiment.setup}"
        prefix = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in prefix)
        if sum(other.data == experiment.data and other.task == experiment.task for other in experiments) > 1:
            prefix += f"-{experiment.protocol}" + (
                f"-holdout{experiment.holdout:g}" if experiment.holdout else ""
            )
        for name, drawn in figures_of(experiment, kinds, pictures=pictures, root=root, device=device):
            written += _save(drawn, folder / f"{prefix}-{name}")
        wanted = images and "similarity" in kinds
        measured = experiment_similarity(experiment, images, root, device) if wanted else None
        if measured is not None:
            path = folder / f"{prefix}-similarity"
            write_json(path.with_name(path.name + ".json"), measured.to_json(), indent=1)
            written += [*_save(similarity_figure(measured), path), path.with_name(path.name + ".json")]
    if not written and images and list(kinds) == ["similarity"]:
        reasons = dict.fromkeys(why_no_similarity(experiment) for experiment in experiments)
        raise TissError(f"no similarity figure can be drawn from these runs: {'; '.join(reasons)}")
    return written


def _save(drawn: Figure, path: Path) -> list[Path]:
    return [save_figure(drawn, path.with_name(f"{path.name}.{suffix}")) for suffix in ("svg", "png")]
