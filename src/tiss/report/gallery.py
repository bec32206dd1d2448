"""Predictions of several methods after each step, for a few telling test pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from tiss.data.base import Batch
from tiss.data.loader import TestLoader
from tiss.engine.results import step_folder
from tiss.engine.run import Run, load_run
from tiss.evaluation.evaluate import predict_batch
from tiss.models.model import SegmentationModel
from tiss.palette import Colour
from tiss.report.colours import channel_colours
from tiss.report.names import names_in
from tiss.report.plots import GRID, legend_columns, style
from tiss.report.runs import Experiment, Series
from tiss.scenarios.split import Split

Mask = NDArray[np.uint8]
IGNORED = 255
PANEL = 1.15  # inches of a panel's side
TEXT = 5.5  # points of the names inside of it
OUTLINE = "#202020"
VISIBLE = 0.002  # share of a panel's pixels from which on a reader will ask what that colour is


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
        if folder is not None and has_models(series):
            run = load_run(folder, root)
            yield series, run, run.config.eval.size or run.config.data.crop or 512


def has_models(series: Series) -> bool:
    """Whether the models of the first run's steps lie in its folder."""
    folder = series.first.folder
    return folder is not None and (step_folder(folder, 0) / "config.json").is_file()


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
    """One picture for print: input and truth, then a row a method with a column a step, and every class to be seen."""
    rows = {
        method: [None if one is None else gallery.paint(one[picture]) for one in masks]
        for method, masks in gallery.masks.items()
    }
    drawn = panels(gallery, picture, rows)
    axes = np.array(drawn.axes).reshape(-1, gallery.steps + 1)
    for line, masks in zip(axes, gallery.masks.values(), strict=False):
        for axis, one in zip(line[1:], masks, strict=False):
            if one is not None:
                _write_names(axis, one[picture], gallery.classes)
    patches = []
    for channel in visible_channels(gallery, picture):
        red, green, blue = gallery.colours[channel]
        colour = f"#{red:02x}{green:02x}{blue:02x}"
        patches.append(Patch(facecolor=colour, edgecolor=GRID, lw=0.5, label=gallery.classes[channel]))
    if np.mean(gallery.truth[picture] == IGNORED) >= VISIBLE:
        patches.append(Patch(facecolor="#c8c8c8", edgecolor=GRID, lw=0.5, label="ignored"))
    columns = legend_columns(drawn, [str(patch.get_label()) for patch in patches], fontsize=8)
    more = -(-len(patches) // columns) - 1  # rows that the figure has no room for yet
    drawn.set_figheight(drawn.get_figheight() + 0.17 * max(0, more))
    drawn.legend(handles=patches, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return drawn


def _write_names(axis: Axes, mask: Mask, classes: Sequence[str]) -> None:
    """Each class's name into its region of a panel, where there is room for it."""
    height, width = mask.shape
    for name in names_in(mask, classes, TEXT / 72 / PANEL):
        axis.text(
            name.x * width,
            name.y * height,
            name.text,
            fontsize=TEXT,
            color="white",
            ha="center",
            va="center",
            path_effects=[withStroke(linewidth=1.2, foreground=OUTLINE)],
        )


def visible_channels(gallery: Gallery, picture: int, share: float = VISIBLE) -> list[int]:
    """Channels with at least that share of the pixels in the truth or in any panel of a picture, in class order."""
    shown = [one[picture] for masks in gallery.masks.values() for one in masks if one is not None]
    seen = {
        int(channel)
        for mask in (gallery.truth[picture], *shown)
        for channel, count in zip(*np.unique(mask, return_counts=True), strict=True)
        if count >= share * mask.size
    }
    return sorted(channel for channel in seen if channel < len(gallery.classes))


def panels(gallery: Gallery, picture: int, rows: Mapping[str, Sequence[NDArray | None]]) -> Figure:
    """Input and truth in the first column; beside them a row a method, a column a step."""
    lines = max(2, len(rows))
    with style():
        drawn = Figure(
            figsize=(PANEL * (gallery.steps + 1) + 0.4, 1.18 * lines + 0.4),
            layout=ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02),
        )
        axes = drawn.subplots(lines, gallery.steps + 1, squeeze=False)
        for axis in axes.flat:
            axis.set_xticks([])
            axis.set_yticks([])
            axis.spines[:].set_visible(False)
        given = (("input", gallery.images[picture]), ("truth", gallery.paint(gallery.truth[picture])))
        for axis, (name, pixels) in zip(axes[:, 0], given, strict=False):
            axis.imshow(pixels, interpolation="nearest")
            axis.set_title(name, fontsize=8, fontweight="normal", pad=2)
        _write_names(axes[1][0], gallery.truth[picture], gallery.classes)
        for step in range(gallery.steps):
            axes[0][step + 1].set_title(f"step {step}", fontsize=8, fontweight="normal", pad=2)
        for line, (label, shown) in zip(axes, rows.items(), strict=False):
            line[1].set_ylabel(textwrap.fill(label, 20), fontsize=8 if len(label) <= 20 else 7)
            for axis, one in zip(line[1:], shown, strict=False):
                if one is not None:
                    axis.imshow(one, interpolation="nearest")
    return drawn
