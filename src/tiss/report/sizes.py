"""How large the pictures were that figures come from: never left out where ours stand beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable

from tiss.report.runs import Experiment, Series

PAPER = "original size, crops of 512"


def picture_size(series: Series) -> str | None:
    """What a run's settings say about its pictures, in words; None where they were not kept."""
    settings = series.first.settings
    resize, crop, tested = (settings.get(key) for key in ("data.resize", "data.crop", "eval.size"))
    if crop is None:
        return None
    text = f"pictures {f'resized to {resize}' if resize else 'at their own size'}, crops of {crop}"
    return text + (f", tested at {tested}" if tested not in (None, crop) else "")


def picture_sizes(experiments: Iterable[Experiment]) -> str:
    """The sizes of all runs, each said once; empty where no run kept its settings."""
    found = [picture_size(series) for experiment in experiments for series in experiment.series]
    return " or ".join(dict.fromkeys(text for text in found if text is not None))


def beside_the_paper(experiments: Iterable[Experiment]) -> list[str]:
    """The line under a table that sets our rows beside the paper's."""
    ours = picture_sizes(experiments)
    return [f"Ours: {ours}; the paper: {PAPER}."] if ours else []
