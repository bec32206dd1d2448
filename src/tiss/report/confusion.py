"""Confusion between background, old and new classes: where the pixels went."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from tiss.engine.results import read_confusion, step_folder
from tiss.errors import TissError
from tiss.report.plots import draw_map, style
from tiss.report.runs import Experiment

CAPTION = "% of the pixels of the true classes of a row; false alarms stand in the row of the background"


def group_confusion(matrix: np.ndarray, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """Where the pixels of background, step 0, step 1, … went: shares in % of the true group, rows true.

    The diagonal of a group counts its pixels that got a class of the same group, right or wrong.
    """
    parts = [[0], *([channel for channel in group if channel < len(matrix)] for group in groups)]
    parts = [part for part in parts if part]
    counts = np.array([[matrix[np.ix_(true, guess)].sum() for guess in parts] for true in parts], float)
    total = counts.sum(1, keepdims=True)
    return np.divide(100 * counts, total, out=np.full_like(counts, np.nan), where=total > 0)


def confusion_maps(matrices: Sequence[tuple[str, np.ndarray]], groups: Sequence[Sequence[int]]) -> Figure:
    """Confusion between background, old and new classes after the last step, one map a method."""
    names = ["background", *(f"step {index}" for index in range(len(groups)))]
    with style():
        size = 0.4 * len(names) + 0.2
        columns = min(4, len(matrices))
        lines = -(-len(matrices) // columns)
        drawn = Figure(figsize=(size * columns + 1.4, (size + 0.3) * lines + 1.2), layout="constrained")
        axes = drawn.subplots(lines, columns, squeeze=False)
        for place, axis in enumerate(axes.flat):
            if place >= len(matrices):
                axis.set_visible(False)
                continue
            label, matrix = matrices[place]
            shares = group_confusion(matrix, groups)
            draw_map(axis, shares, names[: len(shares)], names[: len(shares)], 0, 100, zeros=False)
            axis.set_title(
                textwrap.fill(label, max(12, int(size / 0.085))), fontsize=9 if len(label) < 30 else 7
            )
            if place % columns:
                axis.tick_params(labelleft=False)
            else:
                axis.set_ylabel("true")
            if place + columns < len(matrices):
                axis.tick_params(labelbottom=False)
            else:
                axis.set_xlabel("predicted")
        wide = drawn.get_figwidth() / 0.062  # letters of 8 points that fit
        drawn.supxlabel(textwrap.fill(CAPTION, int(wide)), fontsize=8)
    return drawn


def last_confusions(experiment: Experiment) -> list[tuple[str, np.ndarray]]:
    """The last step's confusion matrix of each method, summed over its seeds, where the folders are at hand."""
    found = []
    for series in experiment.series:
        folders = [
            None if result.folder is None else step_folder(result.folder, series.steps - 1)
            for result in series.results
        ]
        if all(folder is not None and (folder / "confusion.safetensors").is_file() for folder in folders):
            matrices = [read_confusion(folder).numpy() for folder in folders if folder is not None]
            seen = series.first.values["steps"][-1]["seen"]
            if any(len(matrix) != seen for matrix in matrices):
                raise TissError(
                    f"{folders[0]}: its confusion matrix and results.json disagree on the classes"
                )
            found.append((series.label, np.sum(matrices, axis=0)))
    return found
