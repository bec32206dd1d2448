"""The paper's similarity figure: how like the patch tokens of two layers are, against what the model scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from torch import Tensor

from tiss.data.loader import TestLoader
from tiss.engine.results import step_folder
from tiss.losses import patch_similarity
from tiss.models.contract import tokens
from tiss.models.model import SegmentationModel
from tiss.report.colours import MethodStyle, method_styles
from tiss.report.gallery import has_models, opened_series
from tiss.report.plots import GRID, legend_below, style
from tiss.report.runs import Experiment, Result
from tiss.report.tables import averages_of, figure
from tiss.scenarios.split import Split

Pair = tuple[float, float]  # S_positive, S_negative
KIND = "similarity"
DIGITS = 5


@dataclass(frozen=True)
class StepSimilarity:
    """Mean |cos| over equal (positive) and over different (negative) patches of a picture, and what it scores."""

    step: int
    previous: Pair | None  # last layer against the last layer of the step before; None at step 0
    depth: Pair  # last layer against the first
    old: float | None = None  # mIoU of the same run after this step
    new: float | None = None


@dataclass(frozen=True)
class MethodSimilarity:
    """One run's similarities, step by step."""

    label: str
    method: str
    encoder: str
    seed: int
    steps: tuple[StepSimilarity, ...]


@dataclass(frozen=True)
class Similarities:
    """The numbers of one similarity figure: every method of one experiment that has patch tokens."""

    data: str
    task: str
    setup: str
    protocol: str
    holdout: float
    images: int  # test pictures that were looked at
    average: str  # how the scores were averaged
    methods: tuple[MethodSimilarity, ...]

    def to_json(self) -> dict[str, Any]:
        return {"kind": KIND, "format": 1, **asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Similarities:
        plain = {key: value for key, value in values.items() if key not in ("kind", "format", "methods")}
        methods = []
        for method in values["methods"]:
            steps = tuple(
                StepSimilarity(
                    step["step"],
                    None if step["previous"] is None else tuple(step["previous"]),
                    tuple(step["depth"]),
                    step["old"],
                    step["new"],
                )
                for step in method["steps"]
            )
            methods.append(MethodSimilarity(**{**method, "steps": steps}))
        return cls(**plain, methods=tuple(methods))


def even_ids(split: Split, count: int) -> Split:
    """At most `count` of a split's pictures, evenly spread over its order."""
    total = len(split)
    chosen = sorted({index * total // count for index in range(count)}) if total > count else range(total)
    return replace(split, ids=tuple(split.ids[index] for index in chosen))


def read_images(split: Split, size: int) -> list[Tensor]:
    """The pictures of a split as test crops without augmentation, in batches of uint8 N × 3 × H × W."""
    with TestLoader(split, size, batch=16, kind="workers", workers=0) as loader:
        return [batch.image for batch in loader]


def measure_similarity(
    folder: Path, steps: int, batches: Sequence[Tensor], device: str = "cpu"
) -> list[StepSimilarity] | None:
    """S_positive and S_negative of every step's model over the pictures; None where there are no patch tokens."""
    measured = []
    before = None
    for step in range(steps):
        model = SegmentationModel.from_pretrained(step_folder(folder, step)).to(device).eval()
        if model.encoder.contrast_blocks is None:
            return None
        totals = torch.zeros(4, dtype=torch.float64)
        for images in batches:
            totals += len(images) * _four(model, before, images.to(device))
        values = [round(value, DIGITS) for value in (totals / sum(map(len, batches))).tolist()]
        previous: Pair | None = None if before is None else (values[0], values[1])
        measured.append(StepSimilarity(step, previous, (values[2], values[3])))
        before = model
    return measured


@torch.inference_mode()
def _four(model: SegmentationModel, before: SegmentationModel | None, images: Tensor) -> Tensor:
    """S_positive and S_negative against the model before, then against the first layer, over one batch."""
    needs = tuple(model.encoder.contrast_blocks or ())
    first, last = (tokens(feature) for feature in model(images, needs).features)
    reference = last if before is None else tokens(before(images, needs).features[1])
    return torch.stack([*patch_similarity(last, reference), *patch_similarity(last, first)]).double().cpu()


def experiment_similarity(
    experiment: Experiment, count: int = 500, root: str | None = None, device: str = "cpu"
) -> Similarities | None:
    """The similarities of every method whose models are at hand and have patch tokens, first seed each."""
    average = averages_of(experiment)[0]
    methods = []
    read: dict[tuple[tuple[str, ...], int], list[Tensor]] = {}  # the same pictures serve every method
    for series, run, size in opened_series(experiment, root):
        if series.at_once:
            continue
        split = even_ids(run.scenario[-1].test, count)
        key = (split.ids, size)
        if key not in read:
            read[key] = read_images(split, size)
        measured = measure_similarity(run.folder, series.steps, read[key], device)
        if measured is not None:
            values = series.first.values
            steps = tuple(_with_scores(one, series.first, average) for one in measured)
            methods.append(
                MethodSimilarity(
                    series.label, series.method, str(values["encoder"]), int(values["seed"]), steps
                )
            )
    if not methods:
        return None
    images = max(len(ids) for ids, _ in read)
    return Similarities(
        experiment.data,
        experiment.task,
        experiment.setup,
        experiment.protocol,
        experiment.holdout,
        images,
        average,
        tuple(methods),
    )


def why_no_similarity(experiment: Experiment) -> str:
    """The reason, in one line, why there are no similarities of an experiment's runs."""
    at_hand = [series for series in experiment.series if has_models(series)]
    if not at_hand:
        return "it needs the runs' step folders"
    stepwise = [series for series in at_hand if not series.at_once]
    if not stepwise:
        return "what learns all classes at once has no steps to compare"
    encoders = sorted({str(series.first.values["encoder"]) for series in stepwise})
    return f"{', '.join(encoders)}: no patch tokens (first and last block differ in shape); transformers have them"


def _with_scores(one: StepSimilarity, result: Result, average: str) -> StepSimilarity:
    old, new = (figure(part, average)(result.steps[one.step]) for part in ("old", "new"))
    return replace(
        one, old=None if old is None else round(old, DIGITS), new=None if new is None else round(new, DIGITS)
    )


def similarity_figure(measured: Similarities) -> Figure:
    """Four panels: S of consecutive models against old mIoU, S of last and first layer against new mIoU.

    One point a step, joined in order; the larger the point, the later the step.
    """
    styles = method_styles([one.method for one in measured.methods])
    with style():
        drawn = Figure(figsize=(7.4, 5.6), layout="constrained")
        axes = drawn.subplots(2, 2, sharey="row")
        for column, sign in enumerate(("positive", "negative")):
            for row, (what, part) in enumerate((("previous", "old"), ("depth", "new"))):
                axis = axes[row][column]
                other = "h_{t-1}^L" if what == "previous" else "h_t^1"
                for one, look in zip(measured.methods, styles, strict=True):
                    _draw_path(axis, points_of(one, what, column, part), look, one.label)
                axis.set_xlabel(rf"$S_\mathrm{{{sign}}}(h_t^L, {other})$")
                axes[row][0].set_ylabel(f"mIoU of {part} classes in %")
        last = max((step.step for one in measured.methods for step in one.steps), default=0)
        for step in dict.fromkeys((1, last)) if last else ():
            axes[0][0].scatter([], [], s=_area(step - 1), color=GRID, label=f"step {step}")
        note = "one point a step, joined in order: the larger the point, the later the step"
        legend_below(drawn, axes[0][0], note)
    return drawn


def points_of(one: MethodSimilarity, what: str, column: int, part: str) -> list[tuple[float, float]]:
    """One method's points, step after step: similarity and mIoU of the old or new classes."""
    points = []
    for step in one.steps:
        pair: Pair | None = getattr(step, what)
        score: float | None = getattr(step, part)
        if pair is not None and score is not None:
            points.append((pair[column], score))
    return points


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
