"""Predictions of several methods after each step, for a few telling test pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tiss.data.base import Batch
from tiss.data.loader import TestLoader
from tiss.engine.results import step_folder
from tiss.engine.run import Run, load_run
from tiss.evaluation.evaluate import predict_batch
from tiss.models.model import SegmentationModel
from tiss.palette import Colour
from tiss.reporting.colours import channel_colours
from tiss.reporting.plots import style
from tiss.reporting.runs import Experiment, Series
from tiss.scenarios.split import Split

Mask = NDArray[np.uint8]


@dataclass(frozen=True)
class Gallery:
    """Pictures with their truth, and for each method its masks by step: None where there is no such step."""

    ids: tuple[str, ...]
    images: tuple[Mask, ...]  # H × W × 3 each
    truth: tuple[Mask, ...]  # H × W channels each, 255 = ignore
    masks: dict[str, list[tuple[Mask, ...] | None]]  # method → step → one mask a picture
    classes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    colours: tuple[Colour, ...]

    @property
    def steps(self) -> int:
        return len(self.groups)

    def paint(self, mask: Mask) -> Mask:
        """Channels H × W as colours H × W × 3; ignored pixels light grey."""
        table = np.full((256, 3), 200, np.uint8)
        table[: len(self.colours)] = self.colours
        return table[mask]


def choose_pictures(split: Split, groups: Sequence[Sequence[int]], count: int) -> list[str]:
    """Ids of test pictures that show old and new classes together, as many classes as can be.

    Deterministic: the richest first, ties by id; each next one must show a class that the fewest so far show.
    """
    channel = {value: int(split.table[value]) for value in range(256)}
    first = set(groups[0])
    present = split.dataset.classes_present(split.split)
    found = {id: {channel[value] for value in present[id]} - {0, 255} for id in split.ids}

    def richness(id: str) -> int:
        mixed = bool(found[id] & first) and bool(found[id] - first)
        return len(found[id]) + (2 if mixed else 0)

    chosen: list[str] = []
    shown: dict[int, int] = {}
    while len(chosen) < min(count, len(found)):
        rest = [id for id in split.ids if id not in chosen]
        best = max(rest, key=lambda id: richness(id) - sum(0.75 * shown.get(c, 0) for c in found[id]))
        chosen.append(best)
        for c in found[best]:
            shown[c] = shown.get(c, 0) + 1
    return chosen


def collect_gallery(
    experiment: Experiment, count: int = 4, root: str | None = None, device: str = "cpu"
) -> Gallery | None:
    """Runs every step's model of the first seed of each method over a few test pictures.

    None where no run has its model folders. `root` says where the data lie now, if they have moved.
    """
    found = list(opened_series(experiment, root))
    if not found:
        return None
    _, first, size = found[0]
    scenario, split = first.scenario, first.scenario[-1].test
    chosen = choose_pictures(split, scenario.groups, count)
    batch = read_batch(replace(split, ids=tuple(chosen)), size)
    masks = {series.label: _predict(series, run.folder, batch, device) for series, run, _ in found}
    return Gallery(
        ids=tuple(batch.ids),
        images=tuple(image.permute(1, 2, 0).numpy() for image in batch.image),
        truth=tuple(label.numpy().astype(np.uint8) for label in batch.label),
        masks=masks,
        classes=scenario.classes,
        groups=tuple(tuple(group) for group in scenario.groups),
        colours=tuple(channel_colours(scenario)),
    )


def opened_series(experiment: Experiment, root: str | None = None) -> Iterator[tuple[Series, Run, int]]:
    """Every series whose first run has its models at hand, with that run and the size of its test crops."""
    for series in experiment.series:
        folder = series.first.folder
        if folder is not None and (step_folder(folder, 0) / "config.json").is_file():
            run = load_run(folder, root)
            yield series, run, run.config.eval.size or run.config.data.crop or 512


def read_batch(split: Split, size: int) -> Batch:
    """All pictures of a (small) split as one batch of test crops."""
    with TestLoader(split, size, mode="crop", batch=max(1, len(split)), kind="workers", workers=0) as loader:
        return next(iter(loader))


def _predict(series: Series, folder: Path, batch: Batch, device: str) -> list[tuple[Mask, ...] | None]:
    shown: list[tuple[Mask, ...] | None] = [None] * len(series.first.values["groups"])
    for step in range(series.steps):
        model = SegmentationModel.from_pretrained(step_folder(folder, step)).to(device).eval()
        with torch.inference_mode():
            labels = predict_batch(model, batch.to(device)).cpu().numpy().astype(np.uint8)
        shown[-1 if series.at_once else step] = tuple(labels)
    return shown


def gallery_figure(gallery: Gallery, picture: int) -> Figure:
    """One picture for print: input and truth, then a row a method with a column a step."""
    methods = list(gallery.masks)
    with style():
        drawn = Figure(
            figsize=(1.15 * (gallery.steps + 1) + 0.3, 1.2 * len(methods) + 0.4), layout="constrained"
        )
        axes = drawn.subplots(len(methods), gallery.steps + 1, squeeze=False)
        for axis in axes.flat:
            axis.set_axis_off()
        axes[0][0].imshow(gallery.images[picture])
        axes[0][0].set_title("input", fontsize=8, fontweight="normal")
        if len(methods) > 1:
            axes[1][0].imshow(gallery.paint(gallery.truth[picture]), interpolation="nearest")
            axes[1][0].set_title("truth", fontsize=8, fontweight="normal")
        for line, method in zip(axes, methods, strict=True):
            for step, masks in enumerate(gallery.masks[method]):
                if masks is not None:
                    line[step + 1].imshow(gallery.paint(masks[picture]), interpolation="nearest")
                    line[step + 1].set_title(f"{method}, step {step}", fontsize=8, fontweight="normal")
    return drawn
