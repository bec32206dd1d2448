"""What needs the models of a run: predictions and feature maps of a few test images, and similarities of patch tokens.

The numbers of one similarity figure are a dictionary, as in its JSON file: data, task, setup, protocol, holdout, images
(over which means were taken), average (of the mIoU) and methods; each method has a label, method, encoder, seed and
steps; each step has old and new (mIoU) and two pairs of S_positive and S_negative, mean |cos| over equal and over
different patches of an image: "previous", last layer against the last layer of the step before (None at step 0), and
"depth", last layer against the first.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from torch import Tensor

from tiss.data.base import IGNORE
from tiss.data.loader import TestLoader
from tiss.engine.run import Run, load_run
from tiss.engine.run_folder import RunFolder
from tiss.errors import TissError
from tiss.evaluation.evaluate import predict_batch
from tiss.losses import patch_similarity
from tiss.models import SegmentationModel, tokens
from tiss.palette import Colour, class_colours
from tiss.report.labels import looks_of
from tiss.report.plots import GRID, STYLE, canvas, legend_below
from tiss.report.runs import Experiment, Series
from tiss.scenarios import Scenario, Split

Mask = NDArray[np.uint8]
Floats = NDArray[np.float64]
Numbers = dict[str, Any]
PANEL = 1.15  # inches of a panel's side
TEXT = 5.5  # points of the names inside of it
VISIBLE = 0.002  # share of a panel's pixels from which on its legend names a class
IGNORED_COLOUR = (200, 200, 200)
DIGITS = 5  # of similarities


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

    def paint(self, mask: Mask) -> Mask:
        """Channels H × W as colours H × W × 3; ignored pixels light grey."""
        table = np.full((256, 3), IGNORED_COLOUR, np.uint8)
        table[: len(self.colours)] = self.colours
        return table[mask]

    def names(self, mask: Mask) -> list[tuple[str, float, float]]:
        """What `names_in` finds where a page shows a mask 92 pixels wide, with text of 9 pixels."""
        return names_in(mask, self.classes, 9 / (92 * mask.shape[0] / mask.shape[1]))

    def rows(self, index: int) -> dict[str, list[Mask | None]]:
        """The masks of an image by method and step."""
        return {label: [one[index] if one else None for one in masks] for label, masks in self.masks.items()}

    def feature_rows(self, index: int) -> dict[str, list[Mask]]:
        """The feature maps of an image as colours, by method and step."""
        return {
            label: principal_colours([maps[index] for maps in steps])
            for label, steps in self.features.items()
        }


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


def channel_colours(scenario: Scenario) -> list[Colour]:
    """RGB of every channel of a scenario: the data set's customary colours where it has them.

    A class keeps its colour whatever the order in which a task brings it.
    """
    by_value = scenario.dataset.colours() or class_colours(len(scenario.dataset.classes) + 1)
    return [by_value[value] for value in (0, *(value for group in scenario.values for value in group))]


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
    split = replace(split, ids=tuple(choose_images(split, scenario.groups, count)))
    with TestLoader(split, size, batch=len(split), kind="workers", workers=0) as loader:
        batch = next(iter(loader))
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
        if series.first.folder is not None and has_models(series):
            run = load_run(series.first.folder, root)
            yield series, run, run.config.eval.size or run.config.data.crop or 512


def has_models(series: Series) -> bool:
    """Whether the first run's folder has the models of its steps."""
    folder = series.first.folder
    return folder is not None and (RunFolder(folder).step(0).path / "config.json").is_file()


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


def principal_colours(maps: Sequence[Floats]) -> list[Mask]:
    """Feature maps D × h × w of one image, step after step, as colours h × w × 3.

    Red, green and blue are the first three principal components of the *first* map, with its scale: where a
    later map keeps its colours the encoder sees the same, where they change it has drifted.
    """
    rows = [one.reshape(len(one), -1).T.astype(np.float64) for one in maps]
    centre = rows[0].mean(0)
    _, _, components = np.linalg.svd(rows[0] - centre, full_matrices=False)
    basis = components[:3].T  # D × 3, each with its largest entry positive
    basis = basis * np.where(np.take_along_axis(basis, np.abs(basis).argmax(0)[None], 0) < 0, -1, 1)
    low, high = np.percentile((rows[0] - centre) @ basis, [2, 98], axis=0)
    span = np.where(high > low, high - low, 1.0)
    colours = [np.clip(((one - centre) @ basis - low) / span, 0, 1) for one in rows]
    colours = [np.pad(one, ((0, 0), (0, 3 - one.shape[1]))) for one in colours]  # a tiny map has fewer
    return [
        np.round(255 * one).astype(np.uint8).reshape(*feature.shape[1:], 3)
        for one, feature in zip(colours, maps, strict=True)
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
    shown = gallery.rows(index)
    drawn = _panels(gallery, index, shown, gallery.paint)
    every = [gallery.truth[index], *(mask for masks in shown.values() for mask in masks if mask is not None)]
    most = np.max([np.bincount(mask.ravel(), minlength=256) / mask.size for mask in every], axis=0)
    visible = [channel for channel in range(len(gallery.classes)) if most[channel] >= VISIBLE]
    colours = {gallery.classes[channel]: gallery.colours[channel] for channel in visible}
    if np.mean(gallery.truth[index] == IGNORE) >= VISIBLE:
        colours["ignored"] = IGNORED_COLOUR
    patches = [
        Patch(facecolor="#{:02x}{:02x}{:02x}".format(*colour), edgecolor=GRID, lw=0.5)
        for colour in colours.values()
    ]
    with matplotlib.rc_context(fname=STYLE):
        legend_below(drawn, patches, list(colours), rows=1, fontsize=8)
    return drawn


def feature_figure(gallery: Gallery, index: int) -> Figure:
    """The feature maps of one image: a row per method, a column per step; in the first column input and labels."""
    return _panels(gallery, index, gallery.feature_rows(index))


def _panels(
    gallery: Gallery, index: int, rows: Mapping[str, Sequence[Mask | None]], paint: Any = None
) -> Figure:
    """Input, labels and rows of panels; with `paint` they are masks, with the names of their classes."""
    steps, lines = len(gallery.groups), max(2, len(rows))
    with canvas(PANEL * (steps + 1) + 0.4, 1.18 * lines + 0.4, lines, steps + 1, squeeze=False) as (
        drawn,
        axes,
    ):
        engine: Any = drawn.get_layout_engine()
        engine.set(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)
        for axis in axes.flat:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        titles = {"fontsize": 8, "fontweight": "normal", "pad": 2}
        axes[0][0].imshow(gallery.images[index], interpolation="nearest")
        _show(gallery, axes[1][0], gallery.truth[index])
        for axis, title in ((axes[0][0], "input"), (axes[1][0], "labels")):
            axis.set_title(title, **titles)
        for step in range(steps):
            axes[0][step + 1].set_title(f"step {step}", **titles)
        for line, (label, shown) in zip(axes, rows.items(), strict=False):
            line[1].set_ylabel(textwrap.fill(label, 20), fontsize=8 if len(label) <= 20 else 7)
            for axis, one in zip(line[1:], shown, strict=False):
                if one is not None and paint:
                    _show(gallery, axis, one)
                elif one is not None:
                    axis.imshow(one, interpolation="nearest")
    return drawn


def _show(gallery: Gallery, axis: Axes, mask: Mask) -> None:
    axis.imshow(gallery.paint(mask), interpolation="nearest")
    outline = [withStroke(linewidth=1.2, foreground="#202020")]
    for text, x, y in names_in(mask, gallery.classes, TEXT / 72 / PANEL):
        place = x * mask.shape[1], y * mask.shape[0]
        axis.text(*place, text, fontsize=TEXT, color="white", ha="center", va="center", path_effects=outline)


def even_ids(split: Split, count: int) -> Split:
    """At most `count` of a split's images, at equal distances in its order."""
    total = len(split)
    chosen = sorted({index * total // count for index in range(count)}) if total > count else range(total)
    return replace(split, ids=tuple(split.ids[index] for index in chosen))


def experiment_similarity(
    experiment: Experiment, count: int = 500, root: str | None = None, device: str = "cpu"
) -> Numbers | None:
    """The similarities of every method that has its models and patch tokens, first seed each."""
    methods: list[Numbers] = []
    read: dict[tuple[tuple[str, ...], int], list[Tensor]] = {}  # every method uses the same images
    for series, run, size in opened_series(experiment, root):
        if series.at_once:
            continue
        split = even_ids(run.scenario[-1].test, count)
        if (split.ids, size) not in read:
            with TestLoader(split, size, batch=16, kind="workers", workers=0) as loader:
                read[split.ids, size] = [batch.image for batch in loader]
        steps = measure_similarity(run, series, read[split.ids, size], device)
        if steps is not None:
            facts = {key: series.first.values[key] for key in ("method", "encoder", "seed")}
            methods.append({"label": series.label, **facts, "steps": steps})
    if not methods:
        return None
    place = {key: getattr(experiment, key) for key in ("data", "task", "setup", "protocol", "holdout")}
    facts = {"images": max(len(ids) for ids, _ in read), "average": experiment.averages[0]}
    return {"kind": "similarity", "format": 1, **place, **facts, "methods": methods}


@torch.inference_mode()
def measure_similarity(
    run: Run, series: Series, batches: Sequence[Tensor], device: str = "cpu"
) -> list[Numbers] | None:
    """The similarities of every step's model over the images; None where there are no patch tokens."""
    measured: list[Numbers] = []
    before: SegmentationModel | None = None
    for step, scores in enumerate(series.first.steps):
        model = run.model(step).to(device).eval()
        needs = model.encoder.contrast_blocks
        if needs is None:
            return None
        totals = torch.zeros(4, dtype=torch.float64)
        for images in (batch.to(device) for batch in batches):
            first, last = (tokens(feature) for feature in model(images, needs).features)
            reference = last if before is None else tokens(before(images, needs).features[1])
            pairs = [*patch_similarity(last, reference), *patch_similarity(last, first)]
            totals += len(images) * torch.stack(pairs).double().cpu()
        values = [round(value, DIGITS) for value in (totals / sum(map(len, batches))).tolist()]
        means = {"old": scores.old.headline, "new": scores.new.headline}
        rounded = {part: None if mean is None else round(mean, DIGITS) for part, mean in means.items()}
        previous = None if before is None else values[:2]
        measured.append({"step": step, "previous": previous, "depth": values[2:], **rounded})
        before = model
    return measured


def why_no_similarity(experiment: Experiment) -> str:
    """The reason, in one line, why there are no similarities of an experiment's runs."""
    kept = [series for series in experiment.series if has_models(series)]
    if not kept:
        return "it needs the step folders of the runs"
    encoders = sorted({series.first.encoder for series in kept if not series.at_once})
    if not encoders:
        return "training on all classes at once has no steps to compare"
    return f"{', '.join(encoders)}: no patch tokens (first and last block differ in shape); transformers have them"


def similarity_figure(measured: Mapping[str, Any]) -> Figure:
    """Four panels: S of consecutive models against old mIoU, S of last and first layer against new mIoU.

    One point per step, joined in order; the larger the point, the later the step.
    """
    methods = measured["methods"]
    looks = looks_of([one["method"] for one in methods])
    with canvas(7.4, 5.6, 2, 2, sharey="row") as (drawn, axes):
        kinds = (("previous", "old", "h_{t-1}^L"), ("depth", "new", "h_t^1"))
        for line, (what, part, other) in zip(axes, kinds, strict=True):
            line[0].set_ylabel(f"mIoU of {part} classes in %")
            for column, sign in enumerate(("positive", "negative")):
                axis = line[column]
                axis.set_xlabel(rf"$S_\mathrm{{{sign}}}(h_t^L, {other})$")
                for one, look in zip(methods, looks, strict=True):
                    if points := points_of(one, what, column, part):
                        x, y = zip(*points, strict=True)
                        axis.plot(x, y, color=look.colour, ls=look.line, lw=0.8, alpha=0.6)
                        marker = MarkerStyle(look.marker)
                        hollow = marker.is_filled() and not look.filled  # a cross has no face to leave empty
                        areas = [_area(index) for index in range(len(x))]
                        face = "none" if hollow else look.colour
                        axis.scatter(x, y, areas, ec=look.colour, fc=face, marker=marker, label=one["label"])
        last = max((step["step"] for one in methods for step in one["steps"]), default=0)
        for step in dict.fromkeys((1, last)) if last else ():
            axes[0][0].scatter([], [], s=_area(step - 1), color=GRID, label=f"step {step}")
        note = "one point per step, joined in order: the larger the point, the later the step"
        known = axes[0][0].get_legend_handles_labels()
        legend_below(drawn, *known, rows=3, handlelength=3.4, title=note, title_fontsize=8)
    return drawn


def points_of(method: Mapping[str, Any], what: str, column: int, part: str) -> list[tuple[float, float]]:
    """One method's points, step after step: similarity and mIoU of the old or new classes."""
    known = (step for step in method["steps"] if step[what] is not None and step[part] is not None)
    return [(step[what][column], step[part]) for step in known]


def _area(index: int) -> float:
    """Of a point, in square points; the first one is that of step 1."""
    return 14 + 10 * index
