"""The parts of the page, as HTML that carries its images: no file of the server is ever addressed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tiss.app.steps import Steps
from tiss.engine.predictor import overlay
from tiss.evaluation.scores import percent
from tiss.palette import class_colours
from tiss.report.html import embed, render
from tiss.report.page import section_of
from tiss.report.plots import inline_svg, style
from tiss.report.runs import experiments, load_results
from tiss.user.compare import SHRINKS, signed


def image_html(
    title: str, image: np.ndarray, mask: np.ndarray, classes: Sequence[str], shown: Iterable[str]
) -> str:
    """An image H × W × 3 with the classes of `shown` in their colours; hovering over it names the class."""
    colours = class_colours(len(classes))
    wanted = set(shown)
    visible = np.array([name in wanted for name in classes] + [False] * (256 - len(classes)))
    drawn = overlay(image, np.where(visible[mask], mask, 0).astype(np.uint8), colours)
    shares = np.bincount(mask.ravel(), minlength=len(classes))[: len(classes)] / mask.size
    order = [int(channel) for channel in np.argsort(-shares, kind="stable") if shares[channel] > 0]
    return render(
        "app_image.html",
        title=title,
        names=json.dumps(list(classes), ensure_ascii=False),
        drawn=embed(drawn, title),
        index=embed(mask),
        legend=[(colours[channel], f"{classes[channel]} {shares[channel]:.0%}") for channel in order],
    )


def run_html(folder: Path, steps: Steps) -> str:
    """The Run tab: the report of a run, or, for a model and its parents, every class step by step."""
    if (folder / "results.json").is_file():
        found = experiments(load_results([folder]))
        parts = [
            render("experiment.html", s=section_of(one, f"app-{index}")) for index, one in enumerate(found)
        ]
        return "".join(parts)
    return steps_html(steps.classes[-1], steps.records[-1], steps.reports)


def steps_html(
    classes: Sequence[str], record: Mapping[str, Any], reports: Sequence[Mapping[str, Mapping[str, Any]]]
) -> str:
    """The steps of an extended model, and each class in each step's report."""
    history = [entry for entry in record.get("history") or [] if isinstance(entry, Mapping)]
    heads = ["class", *(f"step {step}" for step in range(len(reports)))]
    scores, areas = [], []
    marks: dict[tuple[int, int], str] = {}
    for row, name in enumerate(classes):
        found = [report.get(name, {}) for report in reports]
        scores.append([name, *(_score(one) for one in found)])
        areas.append([name, *(_area(one) for one in found)])
        marks |= {(row, column): "worse" for column, one in enumerate(found, 1) if _kept(one) < SHRINKS}
    return render(
        "app_steps.html",
        history=[_history_row(entry) for entry in history],
        heads=heads,
        scores=scores if any(reports) else [],
        areas=areas if marks or any("→" in cell for row in areas for cell in row) else [],
        marks=marks,
        chart=kept_chart(classes, reports) if len(reports) > 1 else "",
    )


def _history_row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    change = entry.get("old_change")
    names = ", ".join(map(str, entry.get("classes") or []))
    shown = (entry.get("step"), names, entry.get("method"), entry.get("train_pictures"))
    scores = (percent(entry.get("new_iou")), signed(change), percent(entry.get("pixels_as_before")))
    return (*map(str, shown), *scores)


def _score(one: Mapping[str, Any]) -> str:
    """The IoU after a step, and its change in the step."""
    change = one.get("change")
    return percent(one.get("after")) + (f" ({signed(change)})" if change is not None else "")


def _area(one: Mapping[str, Any]) -> str:
    """The share of the step's images that a class covers with the model before and with the new one."""
    before, after = one.get("area_before"), one.get("area_after")
    return "–" if before is None or after is None else f"{percent(before)} → {percent(after)}"


def _kept(one: Mapping[str, Any]) -> float:
    """The share of a class's area before a step that is left after it; 1 where nothing is known."""
    before, after = one.get("area_before"), one.get("area_after")
    return 1.0 if not before or after is None else after / before


def kept_chart(classes: Sequence[str], reports: Sequence[Mapping[str, Mapping[str, Any]]]) -> Markup:
    """What is left of the area that each class covered when it was new, step by step."""
    colours = class_colours(len(classes))
    with style():
        drawn = Figure(figsize=(7, 3.2), layout="constrained")
        axis = drawn.subplots()
        for channel, name in enumerate(classes[1:], 1):
            first = next((step for step, report in enumerate(reports) if name in report), len(reports))
            kept = [100.0]
            for report in reports[first + 1 :]:
                kept.append(kept[-1] * min(1, _kept(report.get(name, {}))))
            if len(kept) > 1:
                colour = [value / 255 for value in colours[channel]]
                axis.plot(range(first, len(reports)), kept, marker="o", color=colour, label=name)
        axis.set_xlabel("step")
        axis.set_ylabel("area left, % of that when new")
        axis.set_ylim(bottom=0)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if axis.lines:
            drawn.legend(loc="outside right upper")
    return inline_svg(drawn, "app-kept")
