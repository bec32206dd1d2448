"""What `tiss tune` found: a table and a page of all trials, and the settings as JSON and as a grid."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from tiss import __version__
from tiss.engine.tune import Search, Trial, held_out_ids, tuned_grid, usual_value
from tiss.files import write_json, write_text
from tiss.methods.base import METHODS
from tiss.report.labels import looks_of, setting_text
from tiss.report.plots import INK, canvas, inline_svg
from tiss.report.render import write_page
from tiss.report.runs import Value
from tiss.report.tables import PARTS, Column, Row, Table

TITLE = "All trials: mIoU in % after the last step, on held-out training images"


def write_tuned(table: Mapping[str, Any], searches: Sequence[Search], out: Path) -> list[Path]:
    """Writes tuned.yaml, tune.json and tune.html into `out`; `table` is the grid that was tuned."""
    share, ids = searches[0].first.config.holdout, held_out_ids(searches)
    chosen = " and ".join(f"{len(names)} of {data}" for data, names in ids.items())
    about = f"{len(searches[0].trials)} trials per method, chosen on held-out training images ({chosen})"
    grid, files = (
        tuned_grid(table, searches),
        [out / name for name in ("tuned.yaml", "tune.json", "tune.html")],
    )
    text = yaml.safe_dump(grid, sort_keys=False, allow_unicode=True)
    write_text(files[0], f"# tiss tune, holdout {share:g}: {about}\n{text}")
    labels = labels_of_searches(searches)
    methods = [
        {
            "label": label,
            "method": one.method,
            "knobs": dict(one.knobs),
            "found": dict(one.best().knobs),
            "trials": [{"settings": dict(t.knobs), "miou": t.miou, "run": t.folder.name} for t in one.trials],
        }
        for label, one in zip(labels, searches, strict=True)
    ]
    facts = {"format": 1, "tiss": __version__, "holdout": share, "images": ids, "methods": methods}
    write_json(files[1], facts, indent=1)
    drawn = [inline_svg(knob_figure(one), f"knobs{index}") for index, one in enumerate(searches)]
    write_page(
        files[2],
        "tune.html",
        title="Equal effort: the same number of trials for each method",
        about=about,
        share=share,
        ids=ids,
        table=trials_table(searches),
        methods=list(zip(methods, drawn, strict=True)),
        grid=grid,
    )
    return files


def labels_of_searches(searches: Sequence[Search]) -> list[str]:
    """The method's title; where several are of one method, the name of the first trial's run."""
    titles = [METHODS.get(one.method).title for one in searches]
    several = zip(titles, searches, strict=True)
    return [title if titles.count(title) == 1 else one.first.name for title, one in several]


def trials_table(searches: Sequence[Search]) -> Table:
    """A row per trial; trials of one method are compared with each other."""
    rows = []
    for label, search in zip(labels_of_searches(searches), searches, strict=True):
        best = search.best()
        for trial in search.trials:
            scores = trial.scores()
            means = [None if scores is None else getattr(scores, part).headline for part in PARTS]
            cells = tuple(Value.of([mean]) for mean in means)
            first = trial is search.trials[0]
            text = _text(trial) + (" ← best" if trial is best else "")
            rows.append(Row((label if first else "", text), cells, label, rule=first))
    notes = ("Ranked within each method. All decides; of equal trials, the first. –: the trial failed.",)
    return Table(TITLE, ("method", "settings"), tuple(map(Column, PARTS)), tuple(rows), notes)


def _text(trial: Trial) -> str:
    words = [setting_text(key.partition(".")[2], value) for key, value in trial.knobs.items()]
    return ", ".join(words) or "as the grid has it"


def knob_figure(search: Search) -> Figure:
    """mIoU of all classes over each knob; the best trial filled, the grid's own settings as a line."""
    (look,) = looks_of([search.method])
    best, (first, *others) = search.best(), search.trials
    with canvas(3.1 * len(search.knobs), 2.4, columns=len(search.knobs), sharey=True, squeeze=False) as (
        drawn,
        axes,
    ):
        for axis, (key, (low, high)) in zip(axes[0], search.knobs.items(), strict=True):
            for trial in others:
                if (miou := trial.miou) is not None:
                    face = look.colour if trial is best else "none"
                    axis.plot(trial.knobs[key], miou, "o", color=look.colour, mfc=face)
            if (miou := first.miou) is not None:
                axis.axhline(miou, color=INK, ls=":", lw=1)
                if (usual := usual_value(first.cell.run.config, key)) is not None:
                    axis.plot(usual, miou, "D", color=INK, mfc=INK if first is best else "none")
            if high >= 10 * low:
                axis.set_xscale("log")
            axis.set_xlabel(key)
        axes[0][0].set_ylabel("mIoU of all in %")
    return drawn
