"""How a claim is put to our figures, and the rule that decides."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tiss.engine.settings import what_was_done
from tiss.report.runs import Series, Value
from tiss.report.similarity import Similarities, points_of
from tools.results.kept import Block

STRONG = 0.8  # a rank correlation below which we say that one figure does not go with another
EXACT = 8  # figures up to which all orders are gone through
RARE = 0.05  # how often chance may rank methods as well, for a claim to hold
UNDECIDED = "undecided: "
HOLDS, OPEN, SEEN = "holds", UNDECIDED + "one seed", UNDECIDED + "seen on two pictures, not measured"
NOT, REVERSE = "does not hold: within the spread", "does not hold: the reverse"
ALONE = " (one seed)"  # after a verdict for which the largest deviation of all had to serve
OTHERWISE = "; weights from other pretraining, another decoder: their part cannot be told apart"
ENOUGH = 3  # seeds from which on a deviation is believed


@dataclass(frozen=True)
class Finding:
    """One comparison: where, what against what, and what the rule says."""

    where: str
    figures: str
    runs: tuple[str, ...]
    verdict: str


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a figure over the seeds of a series."""

    label: str
    value: Value | None
    series: Series


def decide(better: Value, worse: Value, assumed: float | None = None) -> str:
    """Whether `better` is above `worse` by more than twice the larger deviation over seeds.

    A side with one seed has none: there `assumed` serves, and what lies within twice of it stays undecided.

    >>> decide(Value(60.0, 1.0, 3), Value(57.0, 0.5, 3)), decide(Value(60.0, 1.0, 3), Value(59.0, 0.5, 3))
    ('holds', 'does not hold: within the spread')
    >>> decide(Value(60.0, 1.0, 3), Value(40.0), assumed=5.0), decide(Value(60.0, 1.0, 3), Value(51.0), assumed=5.0)
    ('holds (one seed)', 'undecided: one seed')
    """
    difference, deviations = better.mean - worse.mean, [better.deviation, worse.deviation]
    alone = None in deviations
    known = [*(one for one in deviations if one is not None), *([assumed] if alone and assumed else [])]
    if alone and not assumed:
        return OPEN
    spread = 2 * max(known)
    if abs(difference) <= spread:
        return OPEN if alone else NOT
    return (HOLDS if difference > 0 else REVERSE) + (ALONE if alone else "")


Measure = Callable[[Block, Series], Value | None]


def of_part(part: str) -> Measure:
    """The mean of some classes after the last step."""
    return lambda block, series: block.last(series, part)


def largest_deviation(blocks: Sequence[Block], measure: Measure) -> float | None:
    """Over seeds, of any method on real data: how far a single run may be off, at the most that was seen."""
    values = [measure(block, series) for block in scored(blocks) for series in block.experiment.series]
    known = [one.deviation for one in values if one is not None and one.count >= ENOUGH]
    return max((one for one in known if one is not None), default=None)


def compare(
    where: str, part: str, better: Side, worse: Side, assumed: float | None, digits: int = 1
) -> Iterator[Finding]:
    """One finding, if both sides were measured."""
    if better.value is None or worse.value is None:
        return
    shown = " against ".join(f"{side.label} {_number(side.value, digits)}" for side in (better, worse))
    difference = better.value.mean - worse.value.mean
    text = f"{part}: {shown} ({difference:+.{digits}f})"
    other = differing(better.series, worse.series)
    note = f"; they also differ in {', '.join(other)}" if other else ""
    verdict = decide(better.value, worse.value, assumed)
    yield Finding(where, text + note, runs_of(better.series) + runs_of(worse.series), verdict)


def _number(value: Value | None, digits: int) -> str:
    assert value is not None
    spread = "" if value.deviation is None else f" ± {value.deviation:.{digits}f}"
    return f"{value.mean:.{digits}f}{spread}"


def differing(one: Series, other: Series) -> list[str]:
    """Settings besides the method and the model in which two series differ: a comparison must name them."""
    first, second = (what_was_done(series.first.settings) for series in (one, other))
    keys = sorted(set(first) | set(second))
    return [
        key
        for key in keys
        if key.startswith(("train.", "data.", "eval."))
        and first.get(key) != second.get(key)
        and first
        and second
    ]


def runs_of(series: Series) -> tuple[str, ...]:
    """The names of a series' records, shortened: the first, then the other seeds."""
    first, *others = series.results
    more = f" and {', '.join(str(one.values['seed']) for one in others)}" if others else ""
    return (f"`{first.values.get('name', series.label)}`{more}",)


def scored(blocks: Sequence[Block], transformer: bool | None = None) -> Iterator[Block]:
    """Blocks on real data that were scored on the test set."""
    for block in blocks:
        real = block.experiment.data != "shapes" and not block.experiment.holdout
        if real and (transformer is None or block.is_transformer == transformer):
            yield block


def versus(
    better: str,
    worse: str,
    parts: Sequence[str],
    transformer: bool | None,
    blocks: Sequence[Block],
    _: object,
) -> Iterator[Finding]:
    """One method against another, on every task for which we have both."""
    assumed = {part: largest_deviation(blocks, of_part(part)) for part in parts}
    for block in scored(blocks, transformer):
        one, other = block.series(better), block.series(worse)
        if one is not None and other is not None:
            for part in parts:
                better_side, worse_side = (
                    Side(series.label, block.last(series, part), series) for series in (one, other)
                )
                yield from compare(block.heading, part, better_side, worse_side, assumed[part])


def best_of_all(method: str, rivals: Sequence[str], blocks: Sequence[Block], _: object) -> Iterator[Finding]:
    """A method against the best of its rivals, all classes; it takes two rivals to speak of a best."""
    assumed = largest_deviation(blocks, of_part("all"))
    for block in scored(blocks, True):
        own = block.series(method)
        others = [series for name in rivals if (series := block.series(name)) is not None]
        if own is None or len(others) < 2:
            continue
        sides = [Side(series.label, block.last(series, "all"), series) for series in others]
        best = max(sides, key=lambda side: side.value.mean if side.value else -1.0)
        own_side = Side(own.label, block.last(own, "all"), own)
        yield from compare(block.heading, "all", own_side, best, assumed)


def above_each(method: str, rivals: Sequence[str], blocks: Sequence[Block], _: object) -> Iterator[Finding]:
    """A method against each of its rivals, all classes."""
    for rival in rivals:
        yield from versus(method, rival, ("all",), True, blocks, _)


def kept_share(block: Block, series: Series) -> Value | None:
    """Old classes after the last step as a share of offline's with the same encoder."""
    bound = None if block.offline is None else block.last(block.offline, "old")
    if bound is None:
        return None
    return Value.of(
        None if (old := result.steps[-1].old.headline) is None else old / bound.mean
        for result in series.results
    )


def architectures(
    figure: Measure,
    part: str,
    digits: int,
    methods: Sequence[tuple[str, str]],
    blocks: Sequence[Block],
    _: object,
) -> Iterator[Finding]:
    """A method on a transformer against one on a CNN, on the same task, pair by pair."""
    assumed = largest_deviation(blocks, figure)
    for one in scored(blocks, True):
        for other in scored(blocks, False):
            places = [(b.experiment.data, b.experiment.task, b.experiment.setup) for b in (one, other)]
            for pair in methods if places[0] == places[1] else ():
                found = [(block, block.series(name)) for block, name in zip((one, other), pair, strict=True)]
                sides = [
                    Side(f"{series.label} {block.encoder}", figure(block, series), series)
                    for block, series in found
                    if series is not None
                ]
                if len(sides) == 2:
                    where = " ".join(places[0]) + OTHERWISE
                    yield from compare(where, part, sides[0], sides[1], assumed, digits)


def harder(blocks: Sequence[Block], _: object) -> Iterator[Finding]:
    """The same five classes at once and one after another."""
    known = {(b.experiment.data, b.experiment.task, b.experiment.setup, b.encoder): b for b in scored(blocks)}
    assumed = largest_deviation(blocks, of_part("all"))
    for (data, task, setup, encoder), block in known.items():
        other = known.get((data, "15-1", setup, encoder))
        at_once, in_turn = block.series("mib"), other.series("mib") if other else None
        if task == "15-5" and other is not None and at_once is not None and in_turn is not None:
            sides = (
                Side("15-5", block.last(at_once, "all"), at_once),
                Side("15-1", other.last(in_turn, "all"), in_turn),
            )
            yield from compare(f"{data} {setup}, {encoder}, MiB", "all", *sides, assumed)


def ratio(method: str, target: float, blocks: Sequence[Block], _: object) -> Iterator[Finding]:
    """All classes over offline's with the same encoder; the rule: at least the paper's own ratio, on average."""
    for block in scored(blocks, True):
        own, bound = block.series(method), block.offline
        place = (block.experiment.task, block.experiment.setup) == ("15-1", "overlapped")
        if own is None or bound is None or not place:
            continue
        values = block.last(own, "all"), block.last(bound, "all")
        if values[0] is not None and values[1] is not None:
            share = values[0].mean / values[1].mean
            text = f"all: {own.label} {values[0]} of offline's {values[1]}: {share:.3f}"
            verdict = HOLDS if share >= target else f"does not hold: below {target:g}"
            yield Finding(block.heading, text, runs_of(own) + runs_of(bound), verdict)


def follows(
    what: str, column: int, part: str, sign: int, _: object, measured: Sequence[Similarities]
) -> Iterator[Finding]:
    """Whether methods rank by their similarity as they rank by their mIoU, after the last step."""
    for one in measured:
        points = [(method.label, points_of(method, what, column, part)) for method in one.methods]
        last = [(label, *path[-1]) for label, path in points if path]
        if len(last) < 4:
            continue
        correlation = spearman([x for _, x, _ in last], [y for _, _, y in last])
        luck = chance(abs(correlation), len(last))
        if abs(correlation) < STRONG:
            verdict = f"does not hold: below {STRONG:g}" + ALONE
        elif luck > RARE:
            verdict = f"{UNDECIDED}chance does as well {luck:.0%} of the time"
        else:
            verdict = (HOLDS if sign * correlation > 0 else REVERSE) + ALONE
        labels = ", ".join(label for label, _, _ in last)
        text = f"rank correlation with the mIoU of {part} classes {correlation:+.2f} over {labels}"
        yield Finding(f"{one.data} {one.task} {one.setup}, {one.images} pictures", text, (), verdict)


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The correlation of ranks; equal values share their mean rank.

    >>> spearman([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.5
    """
    ranks = [
        [statistics.fmean(i for i, v in enumerate(sorted(vs)) if v == value) for value in vs]
        for vs in (xs, ys)
    ]
    if len(set(ranks[0])) == 1 or len(set(ranks[1])) == 1:
        return 0.0
    return round(statistics.correlation(*ranks), 6)


def chance(correlation: float, count: int) -> float:
    """How often `count` figures in any order have a rank correlation as high as this, all orders being equal.

    >>> round(chance(0.8, 4), 4), round(chance(1.0, 4), 4)
    (0.1667, 0.0417)
    """
    if count > EXACT:
        return 0.0  # for what is at least STRONG, less than one time in a hundred
    places = [float(place) for place in range(count)]
    found = [spearman(places, order) for order in itertools.permutations(places)]
    return sum(one >= correlation for one in found) / len(found)


def by_eye(blocks: Sequence[Block], _: object) -> Iterator[Finding]:
    """What the kept feature maps show where both kinds of network were run; looking decides nothing."""
    kinds = {block.is_transformer for block in scored(blocks) if block.series("mib") is not None}
    if kinds == {True, False}:
        text = "MiB on ViT-S/14 and on ResNet-50: the maps of both keep their pattern over all steps"
        image = "[figure](images/voc-15-1-overlapped-features.png)"
        yield Finding("voc 15-1 overlapped", f"{text} ({image})", (), SEEN)


def never(_: object, __: object) -> Iterator[Finding]:
    """A claim on data or models that we have no runs of."""
    yield from ()
