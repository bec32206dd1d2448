"""The paper's similarity figure: the similarity of patch tokens of two layers against mIoU.

The numbers of one figure are a dictionary, as in its JSON file: data, task, setup, protocol, holdout, images (over
which means were taken), average (of the mIoU) and methods; each method has a label, method, encoder, seed and steps;
each step has old and new (mIoU) and two pairs of S_positive and S_negative, mean |cos| over equal and over different
patches of an image: "previous", last layer against the last layer of the step before (None at step 0), and "depth",
last layer against the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from torch import Tensor

from tiss.data.loader import TestLoader
from tiss.engine.run import Run
from tiss.losses import patch_similarity
from tiss.models.contract import tokens
from tiss.models.model import SegmentationModel
from tiss.report.colours import MethodStyle, method_styles
from tiss.report.gallery import has_models, opened_series
from tiss.report.plots import GRID, legend_below, style
from tiss.report.runs import Experiment, Series
from tiss.report.tables import averages_of, mean_of
from tiss.scenarios.split import Split

Numbers = dict[str, Any]
KIND = "similarity"
DIGITS = 5


def even_ids(split: Split, count: int) -> Split:
    """At most `count` of a split's images, at equal distances in its order."""
    total = len(split)
    chosen = sorted({index * total // count for index in range(count)}) if total > count else range(total)
    return replace(split, ids=tuple(split.ids[index] for index in chosen))


def read_images(split: Split, size: int) -> list[Tensor]:
    """The images of a split as test crops, in batches of uint8 N × 3 × H × W."""
    with TestLoader(split, size, batch=16, kind="workers", workers=0) as loader:
        return [batch.image for batch in loader]


def experiment_similarity(
    experiment: Experiment, count: int = 500, root: str | None = None, device: str = "cpu"
) -> Numbers | None:
    """The similarities of every method that has its models and patch tokens, first seed each."""
    average = averages_of(experiment)[0]
    methods: list[Numbers] = []
    read: dict[tuple[tuple[str, ...], int], list[Tensor]] = {}  # every method uses the same images
    for series, run, size in opened_series(experiment, root):
        split = even_ids(run.scenario[-1].test, count)
        if series.at_once:
            continue
        if (split.ids, size) not in read:
            read[split.ids, size] = read_images(split, size)
        steps = measure_similarity(run, series, read[split.ids, size], average, device)
        if steps is not None:
            facts = {key: series.first.values[key] for key in ("method", "encoder", "seed")}
            methods.append({"label": series.label, **facts, "steps": steps})
    if not methods:
        return None
    place = {key: getattr(experiment, key) for key in ("data", "task", "setup", "protocol", "holdout")}
    images = max(len(ids) for ids, _ in read)
    return {"kind": KIND, "format": 1, **place, "images": images, "average": average, "methods": methods}


def measure_similarity(
    run: Run, series: Series, batches: Sequence[Tensor], average: str, device: str = "cpu"
) -> list[Numbers] | None:
    """The similarities of every step's model over the images; None where there are no patch tokens."""
    measured: list[Numbers] = []
    before = None
    for step in range(series.steps):
        model = run.model(step).to(device).eval()
        if model.encoder.contrast_blocks is None:
            return None
        totals = torch.zeros(4, dtype=torch.float64)
        for images in batches:
            totals += len(images) * _four(model, before, images.to(device))
        values = [round(value, DIGITS) for value in (totals / sum(map(len, batches))).tolist()]
        scores = {part: mean_of(part, average)(series.first.steps[step]) for part in ("old", "new")}
        rounded = {part: None if mean is None else round(mean, DIGITS) for part, mean in scores.items()}
        previous = None if before is None else values[:2]
        measured.append({"step": step, "previous": previous, "depth": values[2:], **rounded})
        before = model
    return measured


@torch.inference_mode()
def _four(model: SegmentationModel, before: SegmentationModel | None, images: Tensor) -> Tensor:
    """S_positive and S_negative against the model before, then against the first layer, over one batch."""
    needs = tuple(model.encoder.contrast_blocks or ())
    first, last = (tokens(feature) for feature in model(images, needs).features)
    reference = last if before is None else tokens(before(images, needs).features[1])
    return torch.stack([*patch_similarity(last, reference), *patch_similarity(last, first)]).double().cpu()


def why_no_similarity(experiment: Experiment) -> str:
    """The reason, in one line, why there are no similarities of an experiment's runs."""
    kept = [series for series in experiment.series if has_models(series)]
    if not kept:
        return "it needs the step folders of the runs"
    stepwise = [series for series in kept if not series.at_once]
    if not stepwise:
        return "training on all classes at once has no steps to compare"
    encoders = sorted({str(series.first.values["encoder"]) for series in stepwise})
    return f"{', '.join(encoders)}: no patch tokens (first and last block differ in shape); transformers have them"


def similarity_figure(measured: Mapping[str, Any]) -> Figure:
    """Four panels: S of consecutive models against old mIoU, S of last and first layer against new mIoU.

    One point per step, joined in order; the larger the point, the later the step.
    """
    methods = measured["methods"]
    looks = method_styles([one["method"] for one in methods])
    with style():
        drawn = Figure(figsize=(7.4, 5.6), layout="constrained")
        axes = drawn.subplots(2, 2, sharey="row")
        for row, (what, part, other) in enumerate(
            (("previous", "old", "h_{t-1}^L"), ("depth", "new", "h_t^1"))
        ):
            for column, sign in enumerate(("positive", "negative")):
                axis = axes[row][column]
                for one, look in zip(methods, looks, strict=True):
                    _draw_path(axis, points_of(one, what, column, part), look, one["label"])
                axis.set_xlabel(rf"$S_\mathrm{{{sign}}}(h_t^L, {other})$")
            axes[row][0].set_ylabel(f"mIoU of {part} classes in %")
        last = max((step["step"] for one in methods for step in one["steps"]), default=0)
        for step in dict.fromkeys((1, last)) if last else ():
            axes[0][0].scatter([], [], s=_area(step - 1), color=GRID, label=f"step {step}")
        note = "one point per step, joined in order: the larger the point, the later the step"
        legend_below(drawn, axes[0][0], note)
    return drawn


def points_of(method: Mapping[str, Any], what: str, column: int, part: str) -> list[tuple[float, float]]:
    """One method's points, step after step: similarity and mIoU of the old or new classes."""
    known = (step for step in method["steps"] if step[what] is not None and step[part] is not None)
    return [(step[what][column], step[part]) for step in known]


def _draw_path(axis: Axes, points: list[tuple[float, float]], look: MethodStyle, label: str) -> None:
    if points:
        x, y = zip(*points, strict=True)
        axis.plot(x, y, color=look.colour, ls=look.line, lw=0.8, alpha=0.6)
        areas = [_area(index) for index in range(len(x))]
        marker = MarkerStyle(look.marker)
        face = look.face if marker.is_filled() else look.colour  # a cross has no face to leave empty
        axis.scatter(x, y, s=areas, ec=look.colour, fc=face, marker=marker, label=label)


def _area(index: int) -> float:
    """Of a point, in square points; the first one is that of step 1."""
    return 14 + 10 * index
