"""The headline of a report: who keeps the first classes, who loses part of them, who forgets them."""

from __future__ import annotations

from tiss.evaluation.scores import percent
from tiss.report.runs import Experiment
from tiss.report.tables import averages_of, figure

LITTLE = 10.0  # mIoU in % below which the first classes were not learnt to speak of
KEPT = 0.05  # a method keeps what it knew when it loses at most this share of it
LOST = 0.4  # and forgets it when it loses more than this
MEASURE = (
    "mIoU of the classes of step 0, without the background: after step 0 → after the last step. "
    f"Kept: at most {KEPT:.0%} of it lost; forgotten: more than {LOST:.0%}.".replace("%", " %")
)


def story(experiment: Experiment) -> list[tuple[str, str]]:
    """The headline as (kind, sentence): bad, part, good, bound."""
    average = averages_of(experiment)[-1]
    forget: list[str] = []
    lose: list[str] = []
    keep: list[str] = []
    ignorant: list[str] = []
    bounds: list[str] = []
    for series in experiment.series:
        first, last = (series.value(step, figure("old", average)) for step in (0, -1))
        if first is None or last is None:
            continue
        told = f"{series.label} ({percent(first.mean)} → {percent(last.mean)})"
        if series.at_once:
            bounds.append(f"{series.label} training on everything at once reaches {percent(last.mean)}.")
        elif not series.first.finished:
            continue  # it may forget yet
        elif series.steps > 1 and first.mean < LITTLE:
            ignorant.append(told)
        elif series.steps > 1:
            share = 1 - last.mean / first.mean
            (forget if share > LOST else lose if share > KEPT else keep).append(told)
    sentences: list[tuple[str, str]] = []
    what = f"the first {len(experiment.groups[0])} classes"
    for kind, verb, rest, names in (
        ("bad", "forget", "", forget),
        ("part", "lose", "part of ", lose),
        ("good", "keep", "", keep),
    ):
        if names:
            ending = "s" if len(names) == 1 else ""
            sentences.append((kind, f"{_list(names)} {verb}{ending} {rest}{'them' if sentences else what}."))
    if ignorant:
        sentences.append(("bound", f"{_list(ignorant)} hardly learnt {what}: nothing to forget."))
    return sentences + [("bound", text[0].upper() + text[1:]) for text in bounds]


def _list(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
