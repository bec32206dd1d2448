"""The paper's similarity figure: how like the patch tokens of two layers are, against what the model scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tiss.data.loader import TestLoader
from tiss.engine.results import step_folder
from tiss.losses import patch_similarity
from tiss.models.contract import tokens
from tiss.models.model import SegmentationModel
from tiss.reporting.colours import method_styles
from tiss.reporting.gallery import opened_series
from tiss.reporting.plots import style
from tiss.reporting.runs import Experiment, Series
from tiss.reporting.tables import averages_of, figure
from tiss.scenarios.split import Split

Pair = tuple[float, float]  # S_positive, S_negative


@dataclass(frozen=True)
class StepSimilarity:
    """Mean |cos| over equal (positive) and over different (negative) patches of a picture."""

    step: int
    previous: Pair | None  # last layer against the last layer of the step before; None at step 0
    depth: Pair  # last layer against the first


def even_ids(split: Split, count: int) -> Split:
    """At most `count` of a split's pictures, evenly spread over its order."""
    total = len(split)
    chosen = sorted({index * total // count for index in range(count)}) if total > count else range(total)
    return replace(split, ids=tuple(split.ids[index] for index in chosen))


def measure_similarity(
    folder: Path, steps: int, split: Split, size: int, device: str = "cpu"
) -> list[StepSimilarity] | None:
    """S_positive and S_negative of every step's model over `split`, without augmentation.

    None for an encoder that has no patch tokens.
    """
    measured = []
    before = None
    for step in range(steps):
        model = SegmentationModel.from_pretrained(step_folder(folder, step)).to(device).eval()
        if model.encoder.contrast_blocks is None:
            return None
        totals = torch.zeros(4, dtype=torch.float64)
        for batch_size, values in _batches(model, before, split, size, device):
            totals += batch_size * values
        positive, negative, deep_positive, deep_negative = (totals / len(split)).tolist()
        previous: Pair | None = None if before is None else (positive, negative)
        measured.append(StepSimilarity(step, previous, (deep_positive, deep_negative)))
        before = model
    return measured


def _batches(
    model: SegmentationModel, before: SegmentationModel | None, split: Split, size: int, device: str
) -> Iterator[tuple[int, torch.Tensor]]:
    """For each batch: its pictures, and the four similarities."""
    needs = tuple(model.encoder.contrast_blocks or ())
    with TestLoader(split, size, batch=16, kind="workers", workers=0) as loader, torch.inference_mode():
        for batch in loader:
            images = batch.image.to(device)
            first, last = (tokens(feature) for feature in model(images, needs).features)
            reference = last if before is None else tokens(before(images, needs).features[1])
            values = [*patch_similarity(last, reference), *patch_similarity(last, first)]
            yield len(images), torch.stack(values).double().cpu()


def experiment_similarity(
    experiment: Experiment, count: int = 500, root: str | None = None, device: str = "cpu"
) -> dict[str, list[StepSimilarity]]:
    """The similarities of every method whose models are at hand and have patch tokens, first seed each."""
    found = {}
    for series, run, size in opened_series(experiment, root):
        if not series.at_once:
            split = even_ids(run.scenario[-1].test, count)
            measured = measure_similarity(run.folder, series.steps, split, size, device)
            if measured is not None:
                found[series.label] = measured
    return found


def similarity_figure(experiment: Experiment, measured: dict[str, list[StepSimilarity]]) -> Figure:
    """Four panels: S of consecutive models against old mIoU, S of last and first layer against new mIoU.

    One point a step, joined in order; the larger the point, the later the step.
    """
    average = averages_of(experiment)[0]
    shown = [series for series in experiment.series if series.label in measured]
    with style():
        drawn = Figure(figsize=(7.4, 5.4), layout="constrained")
        axes = drawn.subplots(2, 2, sharey="row")
        for column, sign in enumerate(("positive", "negative")):
            for row, (what, part) in enumerate((("previous", "old"), ("depth", "new"))):
                axis = axes[row][column]
                other = "h_{t-1}^L" if what == "previous" else "h_t^1"
                for series, (colour, marker) in zip(
                    shown, method_styles([s.method for s in shown]), strict=True
                ):
                    points = _points(series, measured[series.label], what, column, part, average)
                    _draw_path(axis, points, colour, marker, series.label)
                axis.set_xlabel(rf"$S_\mathrm{{{sign}}}(h_t^L, {other})$")
                axes[row][0].set_ylabel(f"mIoU of {part} classes in %")
        drawn.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return drawn


def _points(
    series: Series, measured: list[StepSimilarity], what: str, column: int, part: str, average: str
) -> list[tuple[float, float]]:
    points = []
    for one in measured:
        pair: Pair | None = getattr(one, what)
        value = series.value(one.step, figure(part, average))
        if pair is not None and value is not None:
            points.append((pair[column], value.mean))
    return points


def _draw_path(axis: Axes, points: list[tuple[float, float]], colour: str, marker: str, label: str) -> None:
    if points:
        x, y = zip(*points, strict=True)
        axis.plot(x, y, color=colour, lw=0.8, alpha=0.6)
        axis.scatter(x, y, s=[14 + 10 * i for i in range(len(x))], color=colour, marker=marker, label=label)
