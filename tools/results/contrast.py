"""docs/contrast.md: the readings of the paper's two losses beside MiB, on the holdout and on the test set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from tiss.engine.settings import changed_settings
from tiss.methods.base import settings_from
from tiss.report.render import to_markdown
from tiss.report.runs import Series, Value
from tiss.report.table import Cell, Column, Row, Table
from tiss.report.tables import averages_of, figure
from tools.results.compare import HOLDS, NOT, OPEN, REVERSE, decide
from tools.results.contrast_figure import Panel, contrast_figure
from tools.results.kept import Block, blocks, compared
from tools.results.page import MADE, Figures, picture

BASE = "mib"
READINGS = ("mib+cd", "mib+ct", "tiss")
BESIDE = ("mib+l1", "mib+l2")  # other distillations of patch tokens, for comparison
PARTS = ("old", "new", "all")
ABOVE, BELOW, WITHIN, UNJUDGED = "above", "below", "within the spread", "one seed"
VERDICTS = {HOLDS: ABOVE, REVERSE: BELOW, NOT: WITHIN, OPEN: UNJUDGED}
INTRODUCTION = """
# Under which readings do L_cd and L_ct help?

The paper adds two losses to MiB: L_cd, a contrast between patch tokens of the old and the new model, for the old
classes, and L_ct, one between the last and the first layer, for the new ones. Its text leaves room for several
readings; each is a setting of `mib+cd`, `mib+ct` and `tiss`, and a label names only what differs from the default,
which is the paper's formula as written. This page sets every reading that was run beside MiB. mIoU in % after the last
step, mean ± sample deviation over seeds, the background counted with the old classes; a difference is taken over the
seeds that both have. L_ct also works at step 0, unless told otherwise: such a reading starts from another first model.
So do readings that were run on another day, from a first step trained anew (the last column shows it).
What the paper claims: [claims](claims.md); all runs: [results](results.md).
"""
RULE = """
One rule decides: a reading is above MiB when the means differ by more than twice the larger of the two sample
deviations over seeds.
"""
ONE_SEED = """
A reading with one seed has no deviation; it is held against twice MiB's deviation over seeds on the test set instead.
That shows what is worth more seeds; one seed decides nothing.
"""


@dataclass(frozen=True)
class Reading:
    """A series beside MiB: both figures of each part of the classes, over the seeds that both have."""

    series: Series
    seeds: int
    pairs: dict[str, tuple[Value, Value]]

    @property
    def label(self) -> str:
        return self.series.label

    def change(self, part: str) -> float | None:
        """Points above MiB."""
        pair = self.pairs.get(part)
        return None if pair is None else pair[0].mean - pair[1].mean

    def verdict(self, part: str, spread: float | None = None) -> str:
        """Above, below or within; with one seed by twice `spread`, where there is one."""
        pair, change = self.pairs.get(part), self.change(part)
        if pair is None or change is None:
            return UNJUDGED
        decided = VERDICTS[decide(*pair)]
        if decided != UNJUDGED or spread is None:
            return decided
        return ABOVE if change > 2 * spread else BELOW if -change > 2 * spread else WITHIN


def contrast_page(root: Path) -> tuple[str, Figures]:
    """The text of docs/contrast.md, and its figure by its path from the root."""
    figures: Figures = {}
    test, held = chosen_blocks(compared(blocks(root / "results")))
    parts = [MADE + INTRODUCTION]
    if test is None and held is None:
        parts.append("No reading was run beside MiB yet.")
    else:
        parts += sections(test, held, figures)
    return "\n".join(part.strip() + "\n" for part in parts), figures


def chosen_blocks(found: Iterable[Block]) -> tuple[Block | None, Block | None]:
    """The first task with readings beside MiB on the test set, and the same task with a holdout."""
    asked = [b for b in found if b.experiment.data != "shapes" and readings_of(b, READINGS)]
    test = next((block for block in asked if not block.experiment.holdout), None)
    held = next(
        (b for b in asked if b.experiment.holdout and (test is None or place(b) == place(test))), None
    )
    return test, held


def place(block: Block) -> tuple[str, ...]:
    one = block.experiment
    return one.data, one.task, one.setup, one.protocol, block.encoder, block.decoder


def readings_of(block: Block, methods: Sequence[str]) -> list[Reading]:
    """Every finished series of those methods beside MiB."""
    base = block.series(BASE)
    if base is None:
        return []
    found = [one for one in block.experiment.series if one.method in methods and one.first.finished]
    return [beside(block, one, base) for one in found]


def beside(block: Block, series: Series, base: Series) -> Reading:
    """A series and MiB over the seeds that both have; over all of them where they share none."""
    seeds = [{int(result.values["seed"]) for result in one.results} for one in (series, base)]
    shared = seeds[0] & seeds[1]
    kept = [
        Series(
            one.label,
            tuple(result for result in one.results if not shared or result.values["seed"] in shared),
        )
        for one in (series, base)
    ]
    pairs = {}
    for part in PARTS:
        own, other = (block.last(one, part) for one in kept)
        if own is not None and other is not None:
            pairs[part] = own, other
    return Reading(series, len(kept[0].results), pairs)


def sections(test: Block | None, held: Block | None, figures: Figures) -> list[str]:
    """The rule, the figure, the holdout, the test set."""
    tried = readings_of(held, READINGS) if held is not None else []
    tested = readings_of(test, (*READINGS, *BESIDE)) if test is not None else []
    spreads, alone = spread_of(test), any(reading.seeds == 1 for reading in tried)
    source = " and ".join(dict.fromkeys(block.source for block in (test, held) if block is not None))
    panels = [
        Panel(f"{title}, {seeds_text(rows)}", rows, alone_at)
        for title, rows, alone_at in (("held out of training", tried, spreads), ("test set", tested, {}))
        if rows
    ]
    drawn = partial(contrast_figure, panels, source)
    parts = [answer(tried, spreads), RULE + (ONE_SEED if alone else ""), glossary([*tried, *tested])]
    parts.append(
        picture("contrast", f"change against MiB, reading by reading; pictures of {source}", drawn, figures)
    )
    if held is not None:
        parts += [f"## {held.heading}", to_markdown(holdout_table(held, tried))]
        parts += [yardstick(test, spreads)] if alone else []
        parts += [sentence(part, tried, spreads[part]) for part in ("old", "new")]
        parts += [one_seed(tried)]
    if test is not None:
        parts += [f"## {test.heading}, scored on the test set", to_markdown(tested_table(test, tested))]
        parts += [sentence(part, tested, None) for part in PARTS]
    return [part for part in parts if part]


def answer(tried: Sequence[Reading], spreads: dict[str, float | None]) -> str:
    """How many of the readings on the holdout lift or lower the classes, in one sentence."""
    if not tried:
        return ""
    told = []
    for part in ("old", "new"):
        verdicts = [one.verdict(part, spreads[part]) for one in tried]
        lifted, lowered = (verdicts.count(verdict) or "none" for verdict in (ABOVE, BELOW))
        told.append(f"{lifted} lifts the {part} classes beyond the spread, {lowered} lower them")
    return f"**In short**: of {len(tried)} readings, {'; '.join(told)}."


def spread_of(block: Block | None) -> dict[str, float | None]:
    """MiB's sample deviation over seeds, by part of the classes."""
    base = None if block is None else block.series(BASE)
    values = {
        part: block.last(base, part) if block is not None and base is not None else None for part in PARTS
    }
    return {part: None if value is None else value.deviation for part, value in values.items()}


def glossary(readings: Sequence[Reading]) -> str:
    """What the settings that a label names mean."""
    named = {
        key for one in readings for key in changed_settings(one.series.method, one.series.first.settings)
    }
    lines = [
        f"- `{field.name}`: {field.metadata['help']}; in `tiss` {field.default}."
        for field in fields(settings_from("tiss"))
        if field.name in named
    ]
    return "\n".join(["The settings that appear in labels, and their defaults:", "", *lines]) if lines else ""


def holdout_table(block: Block, readings: Sequence[Reading]) -> Table:
    """Reading × old, new, all, the differences to MiB, and the first step that it started from."""
    base = block.series(BASE)
    columns = [*PARTS, *(f"{part} − MiB" for part in PARTS), "after step 0"]
    rows = []
    for series, reading in [(base, None), *((one.series, one) for one in readings)]:
        assert series is not None
        cells: list[Cell] = [block.last(series, part) for part in PARTS]
        cells += [None if reading is None else signed(reading.change(part)) for part in PARTS]
        cells += [series.value(0, figure("all", averages_of(block.experiment)[0]))]
        rows.append(Row((series.label, str(len(series.results))), tuple(cells), None))
    title = f"mIoU in % after the last step, on pictures held out of training; pictures of {block.source}"
    return Table(title, ("reading", "seeds"), tuple(Column(name) for name in columns), tuple(rows))


def tested_table(block: Block, readings: Sequence[Reading]) -> Table:
    """Reading × old, new, all, each with its difference to MiB and what the rule says of it."""
    base = block.series(BASE)
    columns = [*PARTS, *(f"{part} against MiB" for part in PARTS)]
    rows = []
    for series, reading in [(base, None), *((one.series, one) for one in readings)]:
        assert series is not None
        cells: list[Cell] = [block.last(series, part) for part in PARTS]
        cells += [
            None if reading is None else f"{signed(reading.change(part))} {reading.verdict(part)}"
            for part in PARTS
        ]
        rows.append(Row((series.label, str(len(series.results))), tuple(cells), None))
    title = f"mIoU in % after the last step, on the test set; pictures of {block.source}"
    return Table(title, ("method", "seeds"), tuple(Column(name) for name in columns), tuple(rows))


def signed(change: float | None) -> str:
    """Points with their sign, one decimal; no minus before a zero."""
    return "–" if change is None else f"{round(change, 1) + 0.0:+.1f}"


def yardstick(test: Block | None, spreads: dict[str, float | None]) -> str:
    """How far a reading with one seed must be from MiB to be named below."""
    base = None if test is None else test.series(BASE)
    known = [f"{part} {2 * spread:.1f}" for part in ("old", "new") if (spread := spreads[part]) is not None]
    if not known or base is None:
        return "MiB has no deviation over seeds on the test set yet: readings with one seed cannot be judged."
    return f"Twice MiB's deviation over {len(base.results)} seeds on the test set, in points: {', '.join(known)}."


def sentence(part: str, readings: Sequence[Reading], spread: float | None) -> str:
    """Which readings lift a part of the classes, which lower it, which do neither."""
    heads = {ABOVE: "Lifted by", BELOW: "Lowered by", WITHIN: "Within the spread", UNJUDGED: "One seed"}
    named = {
        verdict: [
            f"{one.label} {signed(one.change(part))}"
            for one in readings
            if one.verdict(part, spread) == verdict
        ]
        for verdict in heads
    }
    told = [
        f"{heads[verdict]}: {'; '.join(names) or 'none'}"
        for verdict, names in named.items()
        if names or verdict in (ABOVE, BELOW)
    ]
    return f"**{part.capitalize()} classes.** {'. '.join(told)}."


def one_seed(readings: Sequence[Reading]) -> str:
    """Readings about which nothing is decided."""
    alone = [one.label for one in readings if one.seeds == 1]
    if not alone:
        return ""
    whose = "every reading here has one" if len(alone) == len(readings) else "; ".join(alone)
    return f"One seed decides nothing: {whose}."


def seeds_text(readings: Sequence[Reading]) -> str:
    """How many seeds the rows of a panel have."""
    counts = sorted({one.seeds for one in readings})
    text = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{text} seed{'' if counts == [1] else 's'} a reading"
