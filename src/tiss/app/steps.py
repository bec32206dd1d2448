"""The models that the slider goes through, and what the page shows of each.

HTML carries its images: no file of the server is ever addressed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from torch import Tensor

from tiss.engine.predictor import Predictor, overlay
from tiss.errors import TissError
from tiss.files import read_json
from tiss.models import CONFIG
from tiss.palette import class_colours
from tiss.report.pages import section_of
from tiss.report.plots import GRID, INK, canvas, inline_svg
from tiss.report.render import embed, render
from tiss.report.runs import experiments, load_results
from tiss.user.changes import ClassChange, Comparison, tables
from tiss.user.model_source import Source, find_source, line_of, open_predictor, run_steps

KEPT_MODELS, KEPT_MASKS = 3, 24
Report = Sequence[ClassChange]  # what a step's report.json says
MOST_ROWS = 40  # of the chart: the classes that changed most
LARGEST = 200  # of areas in the chart, in % of the area before
RED = "#d03030"


class Steps:
    """A run's steps, or a model with its parents, first to last. Models are loaded when they are needed."""

    def __init__(self, folders: Sequence[Path], device: str = "auto") -> None:
        self.folders, self.device = list(folders), device
        configs = [read_json(folder / CONFIG) for folder in folders]
        for folder, config in zip(folders, configs, strict=True):
            if not isinstance(config, dict) or not isinstance(config.get("classes"), list):
                raise TissError(f"{folder / CONFIG}: not a model folder of tiss")
        self.classes: list[list[str]] = [config["classes"] for config in configs]
        self.record: dict[str, Any] = configs[-1].get("record", {})
        self.reports = [read_report(folder) for folder in folders]
        self.predictor = lru_cache(KEPT_MODELS)(self._predictor)
        self.mask = lru_cache(KEPT_MASKS)(self._mask)  # of an image that is still the same object
        self.predictor(len(self) - 1)  # a damaged folder is an error of the command, not of a visitor's click

    def __len__(self) -> int:
        return len(self.folders)

    def title(self, step: int) -> str:
        """What a step added: 'step 1: + star'."""
        before = self.classes[step - 1] if step else self.classes[0][:1]
        return f"step {step}: + {', '.join(name for name in self.classes[step] if name not in before)}"

    def _predictor(self, step: int) -> Predictor:
        return open_predictor(Source(self.folders[step], str(self.folders[step])), None, False, self.device)

    def _mask(self, step: int, image: Tensor) -> np.ndarray:
        """Class indices H × W of an image uint8 3 × H × W."""
        return self.predictor(step).one(image).numpy()


def read_report(folder: Path) -> list[ClassChange]:
    """The classes in a step's report.json; empty where there is none."""
    path = folder / "report.json"
    found = read_json(path) if path.is_file() else None
    rows = found.get("classes") if isinstance(found, dict) else None
    known = {one.name for one in fields(ClassChange)}
    changes = [{key: row[key] for key in known & row.keys()} for row in rows or [] if isinstance(row, dict)]
    return [ClassChange(**one) for one in changes if "name" in one]


def open_steps(name: str, device: str = "auto") -> Steps:
    """The steps of a run folder, or of a model with its parents."""
    folder = Path(name).expanduser()
    steps = run_steps(folder) if folder.is_dir() and not (folder / CONFIG).exists() else []
    if not steps:
        source = find_source(name)
        source.load()  # which checks it
        steps = line_of(source.folder)
    return Steps(steps, device)


def image_html(
    title: str, image: np.ndarray, mask: np.ndarray, classes: Sequence[str], shown: Iterable[str]
) -> str:
    """An image H × W × 3 with the classes of `shown` in their colours; hovering over it names the class."""
    colours = class_colours(len(classes))
    hidden = [channel for channel, name in enumerate(classes) if name not in set(shown)]
    drawn = overlay(image, np.where(np.isin(mask, hidden), 0, mask).astype(np.uint8), colours)
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
    if not (folder / "results.json").is_file():
        return steps_html(steps.classes[-1], steps.record, steps.reports)
    sections = [section_of(one, f"app-{i}") for i, one in enumerate(experiments(load_results([folder])))]
    return "".join(render("experiment.html", s=section) for section in sections)


def steps_html(classes: Sequence[str], record: Mapping[str, Any], reports: Sequence[Report]) -> str:
    """The steps of an extended model; every class before and after each of them, as the steps' own reports show it."""
    results = [Comparison(list(report), 0, None, [], judged=False) for report in reports]
    return render(
        "app_steps.html",
        history=[entry for entry in record.get("history") or [] if isinstance(entry, Mapping)],
        reports=[(step, result, tables(result)) for step, result in enumerate(results) if result.classes],
        chart=changes_chart(classes, reports),
    )


def changes_chart(classes: Sequence[str], reports: Sequence[Report]) -> Markup:
    """Every class before (hollow) and after each step: IoU on held-out images, and area on all of them."""
    most: dict[str, float] = {}  # the largest change of each class in any step
    for one in (one for report in reports for one in report):
        found = (abs(value) for value in (one.change, one.area_change) if value is not None)
        most[one.name] = max(most.get(one.name, 0), *found, 0)
    rows = sorted(sorted(most, key=lambda name: -most[name])[:MOST_ROWS], key=[*classes, *most].index)
    if not rows:
        return Markup()
    colours = dict(zip(classes, np.array(class_colours(len(classes))) / 255, strict=True))
    size = 1.3 + 2.2 * len(reports), 2 + 0.4 * len(rows)
    with canvas(*size, 2, len(reports), sharey=True, squeeze=False) as (drawn, axes):
        for step, ((above, below), report) in enumerate(zip(axes.T, reports, strict=True)):
            for one in (one for one in report if one.name in rows):
                first, place = one.name == classes[0], rows.index(one.name)
                colour, line = INK if first else colours.get(one.name, GRID), RED if one.loss(first) else GRID
                area = None if one.area_change is None else 100 + one.area_change
                pairs = (one.before, one.after), (None if area is None else 100, area)
                for axis, (old, new) in zip((above, below), pairs, strict=True):
                    if old is not None and new is not None:
                        axis.plot([old, new], [place, place], color=line, lw=2, zorder=1)
                    if old is not None:
                        axis.plot(old, place, "o", ms=4, color=colour, mfc="white")
                    if new is not None:
                        axis.plot(min(new, LARGEST), place, "o", ms=4, color=colour)
            above.set(title=f"step {step}", xlabel="IoU in %", xlim=(-3, 103))
            below.set(xlabel="area, % of that before", xlim=(-5, LARGEST + 5))
            for axis in (above, below):
                if not axis.lines:  # nothing was there before the first step
                    axis.set(frame_on=False, xticks=[], xlabel="")
                    axis.grid(False)
        axes[0, 0].set_yticks(range(len(rows)), rows, parse_math=False)
        axes[0, 0].set_ylim(len(rows) - 0.5, -0.5)
    return inline_svg(drawn, "app-changes")
