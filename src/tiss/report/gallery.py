"""Predictions and feature maps of several methods after each step, for a few test images."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from tiss.data.base import IGNORE, Batch
from tiss.data.loader import TestLoader
from tiss.engine.run import Run, load_run
from tiss.engine.run_folder import RunFolder
from tiss.evaluation.evaluate import predict_batch
from tiss.palette import Colour
from tiss.report.colours import channel_colours
from tiss.report.plots import GRID, legend_columns, style
from tiss.report.runs import Experiment, Series
from tiss.scenarios.split import Split

Mask = NDArray[np.uint8]
Floats = NDArray[np.float64]
PANEL = 1.15  # inches of a panel's side
TEXT = 5.5  # points of the names inside of it
VISIBLE = 0.002  # share of a panel's pixels from which on its legend names a class
IGNORED_COLOUR = (200, 200, 200)


@dataclass(frozen=True)
class Gallery:
    """Images with their labels, and for each method its masks and feature maps by step."""

    ids: tuple[str, ...]
    images: tuple[Mask, ...]  # H × W × 3 each
    truth: tuple[Mask, ...]  # H × W channels each, 255 = ignore
    masks: dict[str, list[tuple[Mask, ...] | None]]  # method → step → one mask per image
    features: dict[str, list[tuple[Floats, ...]]]  # method with steps → step → one map D × h × w per image
    classes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    colours: tuple[Colour, ...]

    @property
    def steps(self) -> int:
        return len(self.groups)

    def paint(self, mask: Mask) -> Mask:
        """Channels H × W as colours H × W × 3; ignored pixels light grey."""
        table = np.full((256, 3), IGNORED_COLOUR, np.uint8)
        table[: len(self.colours)] = self.colours
        return table[mask]


def choose_images(split: Split, groups: Sequence[Sequence[int]], count: int) -> list[str]:
    """Ids of test images that show old and new classes at once, and as many classes as possible.

    Deterministic: the richest first, ties by id; each next one must show a class that the chosen ones rarely show.
    """
    channel = {value: int(split.table[value]) for value in range(256)}
    first = set(groups[0])
    present = split.dataset.classes_present(split.split)
    found = {id: {channel[value] for value in present[id]} - {0, IGNORE} for id in split.ids}
    chosen: list[str] = []
    shown: dict[int, int] = {}

    def worth(id: str) -> float:
        mixed = bool(found[id] & first) and bool(found[id] - first)
        return len(found[id]) + (2 if mixed else 0) - sum(0.75 * shown.get(c, 0) for c in found[id])

    while len(chosen) < min(count, len(found)):
        chosen.append(max((id for id in split.ids if id not in chosen), key=worth))
        for c in found[chosen[-1]]:
            shown[c] = shown.get(c, 0) + 1
    return chosen


def collect_gallery(
    experiment: Experiment,
    count: int = 4,
    root: str | None = None,
    device: str = "cpu",
    features: bool = True,
) -> Gallery | None:
    """Runs every step's model of the first seed of each method over a few test images.

    None where no run has its model folders. `root` says where the data are now, if they have moved.
    """
    found = list(opened_series(experiment, root))
    if not found or not count:
        return None
    _, first, size = found[0]
    scenario, split = first.scenario, first.scenario[-1].test
    batch = read_batch(replace(split, ids=tuple(choose_images(split, scenario.groups, count))), size)
    masks: dict[str, list[tuple[Mask, ...] | None]] = {}
    maps: dict[str, list[tuple[Floats, ...]]] = {}
    for series, run, _ in found:
        masks[series.label] = [None] * len(scenario.groups)
        for step in range(series.steps):
            model = run.model(step).to(device).eval()
            with torch.inference_mode():
                labels = predict_batch(model, batch.to(device)).cpu().numpy().astype(np.uint8)
                masks[series.label][-1 if series.at_once else step] = tuple(labels)
                if features and not series.at_once:
                    (last,) = model(batch.image.to(device), (-1,)).features
                    maps.setdefault(series.label, []).append(tuple(last.double().cpu().numpy()))
    return Gallery(
        ids=tuple(batch.ids),
        images=tuple(image.permute(1, 2, 0).numpy() for image in batch.image),
        truth=tuple(label.numpy().astype(np.uint8) for label in batch.label),
        masks=masks,
        features=maps,
        classes=scenario.classes,
        groups=tuple(tuple(group) for group in scenario.groups),
        colours=tuple(channel_colours(scenario)),
    )


def opened_series(experiment: Experiment, root: str | None = None) -> Iterator[tuple[Series, Run, int]]:
    """Every series whose first run has its models, with that run and the size of its test crops."""
    for series in experiment.series:
        folder = series.first.folder
        if folder is not None and has_models(series):
            run = load_run(folder, root)
            yield series, run, run.config.eval.size or run.config.data.crop or 512


def has_models(series: Series) -> bool:
    """Whether the first run's folder has the models of its steps."""
    folder = series.first.folder
    return folder is not None and (RunFolder(folder).step(0).path / "config.json").is_file()


def read_batch(split: Split, size: int) -> Batch:
    """All images of a (small) split as one batch of test crops."""
    with TestLoader(split, size, mode="crop", batch=max(1, len(split)), kind="workers", workers=0) as loader:
        return next(iter(loader))


def principal_colours(maps: Sequence[Floats]) -> list[Floats]:
    """Feature maps D × h × w of one image, step after step, as colours h × w × 3 in 0..1.

    Red, green and blue are the first three principal components of the *first* map, with its scale: where a
    later map keeps its colours the encoder sees the same, where they change it has drifted.
    """
    rows = [one.reshape(len(one), -1).T.astype(np.float64) for one in maps]
    centre = rows[0].mean(0)
    _, _, components = np.linalg.svd(rows[0] - centre, full_matrices=False)
    basis = components[:3].T  # D × 3
    basis = basis * np.where(np.take_along_axis(basis, np.abs(basis).argmax(0)[None], 0) < 0, -1, 1)
    low, high = np.percentile((rows[0] - centre) @ basis, [2, 98], axis=0)
    span = np.where(high > low, high - low, 1.0)
    colours = [((one - centre) @ basis - low) / span for one in rows]
    colours = [
        np.pad(one, ((0, 0), (0, 3 - one.shape[1]))) for one in colours
    ]  # a tiny map has fewer components
    return [
        np.clip(one, 0, 1).reshape(*feature.shape[1:], 3) for one, feature in zip(colours, maps, strict=True)
    ]


def names_in(mask: Mask, classes: Sequence[str], height: float) -> list[tuple[str, float, float]]:
    """Names for the regions of a mask H × W of channels, with their centres x, y in shares of width and height.

    `height` is that of the text, a share of the image's. A name that does not fit into its region is shortened;
    where that does not fit either, only the legend has it.
    """
    h = max(1, round(height * len(mask)))
    found = []
    for channel in (int(value) for value in np.unique(mask) if 0 < value < len(classes)):
        sums = np.pad((mask == channel).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
        name = classes[channel]
        for text in (name, name if len(name) < 6 else name[:4] + "."):
            w = max(1, round(0.62 * len(text) * h))  # a letter is 0.62 as wide as high
            if h > mask.shape[0] or w > mask.shape[1]:
                continue
            covered = sums[h:, w:] - sums[:-h, w:] - sums[h:, :-w] + sums[:-h, :-w]
            places = np.argwhere(covered >= 0.97 * h * w)
            if len(places):
                row, column = places[len(places) // 2]
                found.append((text, (column + w / 2) / mask.shape[1], (row + h / 2) / mask.shape[0]))
                break
    return found


def gallery_figure(gallery: Gallery, index: int) -> Figure:
    """One image for print: input and labels, then a row per method with a column per step, and a legend."""
    rows = {
        method: [None if one is None else gallery.paint(one[index]) for one in masks]
        for method, masks in gallery.masks.items()
    }
    drawn = _panels(gallery, index, rows)
    axes = np.array(drawn.axes).reshape(-1, gallery.steps + 1)
    for line, masks in zip(axes, gallery.masks.values(), strict=False):
        for axis, one in zip(line[1:], masks, strict=False):
            if one is not None:
                _write_names(axis, one[index], gallery.classes)
    colours = {
        gallery.classes[channel]: gallery.colours[channel] for channel in visible_channels(gallery, index)
    }
    if np.mean(gallery.truth[index] == IGNORE) >= VISIBLE:
        colours["ignored"] = IGNORED_COLOUR
    patches = [
        Patch(facecolor="#{:02x}{:02x}{:02x}".format(*colour), edgecolor=GRID, lw=0.5, label=name)
        for name, colour in colours.items()
    ]
    columns = legend_columns(drawn, list(colours))
    drawn.set_figheight(drawn.get_figheight() + 0.17 * (-(-len(patches) // columns) - 1))
    drawn.legend(handles=patches, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return drawn


def feature_figure(gallery: Gallery, index: int) -> Figure:
    """The feature maps of one image: a row per method, a column per step; in the first column input and labels."""
    rows = {
        label: principal_colours([maps[index] for maps in steps]) for label, steps in gallery.features.items()
    }
    return _panels(gallery, index, rows)


def visible_channels(gallery: Gallery, index: int) -> list[int]:
    """Channels of which the labels or any panel of an image show more than a few pixels, in class order."""
    shown = [one[index] for masks in gallery.masks.values() for one in masks if one is not None]
    counts = [np.bincount(mask.ravel(), minlength=256) / mask.size for mask in (gallery.truth[index], *shown)]
    visible = np.flatnonzero(np.max(counts, axis=0) >= VISIBLE)
    return [int(channel) for channel in visible if channel < len(gallery.classes)]


def _panels(gallery: Gallery, index: int, rows: Mapping[str, Sequence[NDArray | None]]) -> Figure:
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
        titles = {"fontsize": 8, "fontweight": "normal", "pad": 2}
        axes[0][0].imshow(gallery.images[index], interpolation="nearest")
        axes[0][0].set_title("input", **titles)
        axes[1][0].imshow(gallery.paint(gallery.truth[index]), interpolation="nearest")
        axes[1][0].set_title("labels", **titles)
        _write_names(axes[1][0], gallery.truth[index], gallery.classes)
        for step in range(gallery.steps):
            axes[0][step + 1].set_title(f"step {step}", **titles)
        for line, (label, shown) in zip(axes, rows.items(), strict=False):
            line[1].set_ylabel(textwrap.fill(label, 20), fontsize=8 if len(label) <= 20 else 7)
            for axis, one in zip(line[1:], shown, strict=False):
                if one is not None:
                    axis.imshow(one, interpolation="nearest")
    return drawn


def _write_names(axis: Axes, mask: Mask, classes: Sequence[str]) -> None:
    outline = [withStroke(linewidth=1.2, foreground="#202020")]
    for text, x, y in names_in(mask, classes, TEXT / 72 / PANEL):
        place = x * mask.shape[1], y * mask.shape[0]
        axis.text(*place, text, fontsize=TEXT, color="white", ha="center", va="center", path_effects=outline)
