"""What an encoder sees, step by step: its last feature map as colours, on one scale for all steps of a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tiss.data.base import Batch
from tiss.engine.results import step_folder
from tiss.engine.run import Run
from tiss.models.model import SegmentationModel
from tiss.report.gallery import Gallery, opened_series, panels
from tiss.report.runs import Experiment

Floats = NDArray[np.float64]


def principal_colours(maps: Sequence[Floats]) -> list[Floats]:
    """Feature maps D × h × w of one picture, step after step, as colours h × w × 3 in 0..1.

    Red, green and blue are the first three principal components of the *first* map, with its scale: where a
    later map keeps its colours the encoder sees the same, where they change it has drifted.
    """
    first = _rows(maps[0])
    centre = first.mean(0)
    _, _, components = np.linalg.svd(first - centre, full_matrices=False)
    basis = components[:3].T  # D × 3
    basis = basis * np.where(np.take_along_axis(basis, np.abs(basis).argmax(0)[None], 0) < 0, -1, 1)
    projected = (first - centre) @ basis
    low, high = np.percentile(projected, [2, 98], axis=0)
    span = np.where(high > low, high - low, 1.0)
    colours = [((_rows(one) - centre) @ basis - low) / span for one in maps]
    colours = [
        np.pad(one, ((0, 0), (0, 3 - one.shape[1]))) for one in colours
    ]  # a tiny map has fewer components
    sizes = [one.shape[1:] for one in maps]
    return [np.clip(c, 0, 1).reshape(*size, -1) for c, size in zip(colours, sizes, strict=True)]


def _rows(feature_map: Floats) -> Floats:
    return feature_map.reshape(len(feature_map), -1).T.astype(np.float64)


def run_features(run: Run, batch: Batch, device: str = "cpu") -> list[list[Floats]]:
    """The encoder's last feature map after each step, for each picture of a batch: [picture][step] D × h × w."""
    steps = []
    for step in range(run.steps_done):
        model = SegmentationModel.from_pretrained(step_folder(run.folder, step)).to(device).eval()
        with torch.inference_mode():
            (features,) = model(batch.image.to(device), (-1,)).features
        steps.append(features.double().cpu().numpy())
    return [[features[picture] for features in steps] for picture in range(len(batch.image))]


def gallery_features(
    experiment: Experiment, gallery: Gallery, root: str | None = None, device: str = "cpu"
) -> dict[str, list[list[Floats]]]:
    """For each method with steps, the feature maps of the gallery's pictures: [picture][step] D × h × w."""
    images = torch.stack([torch.from_numpy(image).permute(2, 0, 1) for image in gallery.images])
    labels = torch.zeros(len(images), *images.shape[2:], dtype=torch.int64)
    batch = Batch(images, labels, list(gallery.ids))
    return {
        series.label: run_features(run, batch, device)
        for series, run, _ in opened_series(experiment, root)
        if not series.at_once
    }


def feature_figure(gallery: Gallery, features: dict[str, list[list[Floats]]], picture: int = 0) -> Figure:
    """One picture of the gallery: a row a method, a column a step; below the input, its truth.

    Put a transformer's and a CNN's runs side by side to compare how their features drift.
    """
    return panels(
        gallery, picture, {label: principal_colours(maps[picture]) for label, maps in features.items()}
    )
