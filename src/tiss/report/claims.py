"""The paper's claims (claims.yaml) put to our runs, and the rule that decides."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

from tiss.report.runs import Series, Value
from tiss.report.similarity import Numbers, points_of

if TYPE_CHECKING:
    from tiss.report.results import Benchmark

STRONG = 0.8  # a rank correlation below which one value does not go with another
MANY = 6  # methods of which random ranks correlate as well less than one time in twenty
ENOUGH = 3  # seeds from which on a deviation is trusted
HOLDS, OPEN = "holds", "undecided: one seed"
WITHIN, REVERSE = "does not hold: within the deviation", "does not hold: the reverse"
ALONE = " (one seed)"  # after a verdict for which the largest deviation of all was used


@dataclass(frozen=True)
class Finding:
    """One comparison: where, what against what, and what the rule says."""

    where: str
    figures: str
    verdict: str


def load_claims() -> list[dict[str, Any]]:
    """The claims in the order of claims.yaml."""
    text = resources.files("tiss.report").joinpath("claims.yaml").read_text(encoding="utf-8")
    return list(yaml.safe_load(text))


def findings_on(
    claim: Mapping[str, Any], benchmarks: Sequence[Benchmark], measured: Sequence[Numbers]
) -> list[Finding]:
    """Every comparison that answers a claim; only real data, scored on the test set, count."""
    scored = [one for one in benchmarks if one.experiment.data != "shapes" and not one.experiment.holdout]
    scored = [one for one in scored if not one.about["apart"]]
    if "ask" not in claim:
        return []
    if claim["ask"] == "follows":
        return list(_follows(claim, measured))
    return list(_ratio(claim, scored) if claim["ask"] == "ratio" else _compared(claim, scored))


def decide(better: Value, worse: Value, assumed: float | None = None) -> str:
    """Whether `better` is above `worse` by more than twice the larger deviation over seeds.

    A side with one seed has none: `assumed` is used there, and what lies within twice of it stays undecided.

    >>> decide(Value(60.0, 1.0, 3), Value(57.0, 0.5, 3)), decide(Value(60.0, 1.0, 3), Value(59.0, 0.5, 3))
    ('holds', 'does not hold: within the deviation')
    >>> decide(Value(60.0, 1.0, 3), Value(40.0), assumed=5.0), decide(Value(60.0, 1.0, 3), Value(51.0), assumed=5.0)
    ('holds (one seed)', 'undecided: one seed')
    """
    known = [one for one in (better.deviation, worse.deviation) if one is not None]
    alone = len(known) < 2
    if alone and not assumed:
        return OPEN
    difference = better.mean - worse.mean
    if abs(difference) <= 2 * max([*known, *([assumed] if alone and assumed else [])]):
        return OPEN if alone else WITHIN
    return (HOLDS if difference > 0 else REVERSE) + (ALONE if alone else "")


Measure = Callable[["Benchmark", Series], Value | None]
Side = tuple["Benchmark", Series | None]


def part_of(part: str) -> Measure:
    """The mean of some classes after the last step."""
    return lambda benchmark, series: benchmark.last(series, part)


def _kept(benchmark: Benchmark, series: Series) -> Value | None:
    """Old classes after the last step as a share of those of offline training with the same network."""
    offline = benchmark.series("offline")
    bound = None if offline is None else benchmark.last(offline, "old")
    if bound is None:
        return None
    olds = [result.steps[-1].old.headline for result in series.results]
    return Value.of(None if old is None else old / bound.mean for old in olds)


def largest_deviation(benchmarks: Sequence[Benchmark], measure: Measure) -> float | None:
    """Over seeds, of any method: how far a single run may be off, at the most that was seen."""
    values = [measure(one, series) for one in benchmarks for series in one.experiment.series]
    known = [one.deviation for one in values if one is not None and one.count >= ENOUGH and one.deviation]
    return max(known, default=None)


def _pairs(claim: Mapping[str, Any], scored: Sequence[Benchmark]) -> Iterator[tuple[str, Side, Side]]:
    """What a claim compares: where, and both sides as a benchmark and the series of a method there."""
    if claim["ask"] == "versus":
        for rival, one in itertools.product(claim["worse"], scored):
            if claim.get("network") in (None, one.network):
                yield one.title, (one, one.series(claim["better"])), (one, one.series(rival))
    elif claim["ask"] == "best":  # it takes two rivals to speak of a best
        for one in (one for one in scored if one.network == "vit"):
            rivals = [series for name in claim["rivals"] if (series := one.series(name)) is not None]
            ranked = sorted(rivals, key=lambda series: getattr(one.last(series, "all"), "mean", -1.0))
            if len(ranked) > 1:
                yield one.title, (one, one.series(claim["method"])), (one, ranked[-1])
    else:
        for one, other in itertools.product(scored, repeat=2):
            if claim["ask"] == "harder":  # the same five classes at once and one after another
                same = one.place[::2] == other.place[::2] and one.encoder == other.encoder
                names = (
                    [("mib", "mib")] if same and (one.place[1], other.place[1]) == ("15-5", "15-1") else []
                )
            else:
                same = one.place == other.place and (one.network, other.network) == ("vit", "cnn")
                names = claim["pairs"] if same else []
            for better, worse in names:
                yield " ".join(one.place), (one, one.series(better)), (other, other.series(worse))


def _compared(claim: Mapping[str, Any], scored: Sequence[Benchmark]) -> Iterator[Finding]:
    """One finding per pair and part that were measured on both sides."""
    kept = claim.get("measure") == "kept"
    for where, *sides in _pairs(claim, scored):
        for part in claim.get("parts", ["all"]):
            measure = _kept if kept else part_of(part)
            values = [None if series is None else measure(one, series) for one, series in sides]
            first, second = values
            if first is None or second is None:
                continue
            digits = 3 if kept else 1
            texts = [_side_text(one, sides, value, digits) for one, value in zip(sides, values, strict=True)]
            change = f"{first.mean - second.mean:+.{digits}f}"
            head = "old as a share of offline" if kept else part
            verdict = decide(first, second, largest_deviation(scored, measure))
            yield Finding(where, f"{head}: {' against '.join(texts)} ({change})", verdict)


def _side_text(side: Side, sides: Sequence[Side], value: Value | None, digits: int) -> str:
    """A side's label and value; its encoder or task where the sides differ in it."""
    one, series = side
    assert series is not None and value is not None
    more = [one.encoder] if len({other.encoder for other, _ in sides}) > 1 else []
    more += [one.place[1]] if len({other.place[1] for other, _ in sides}) > 1 else []
    spread = "" if value.deviation is None else f" ± {value.deviation:.{digits}f}"
    return " ".join([series.label, *more, f"{value.mean:.{digits}f}{spread}"])


def _ratio(claim: Mapping[str, Any], benchmarks: Sequence[Benchmark]) -> Iterator[Finding]:
    """All classes over offline's with the same encoder; it holds at the target on average."""
    for benchmark in benchmarks:
        own, bound = benchmark.series(claim["method"]), benchmark.series("offline")
        if own is None or bound is None or benchmark.network != "vit" or benchmark.place[1] != "15-1":
            continue
        values = benchmark.last(own, "all"), benchmark.last(bound, "all")
        if values[0] is not None and values[1] is not None and benchmark.place[2] == "overlapped":
            share = values[0].mean / values[1].mean
            verdict = HOLDS if share >= claim["target"] else f"does not hold: below {claim['target']:g}"
            yield Finding(
                benchmark.title, f"all: {own.label} {values[0]} of {values[1]}: {share:.3f}", verdict
            )


def _follows(claim: Mapping[str, Any], measured: Sequence[Numbers]) -> Iterator[Finding]:
    """Whether methods rank by their similarity as they rank by their mIoU, after the last step."""
    positive = claim["patches"] == "positive"
    for one in measured:
        column = 0 if positive else 1
        paths = [points_of(method, claim["what"], column, claim["part"]) for method in one["methods"]]
        last = [path[-1] for path in paths if path]
        if len(last) < 4:
            continue
        correlation = spearman([x for x, _ in last], [y for _, y in last])
        if abs(correlation) < STRONG:
            verdict = f"does not hold: below {STRONG:g}" + ALONE
        elif len(last) < MANY:
            verdict = f"undecided: random ranks of {len(last)} methods often correlate as well"
        else:
            verdict = (HOLDS if (correlation > 0) == positive else REVERSE) + ALONE
        text = f"rank correlation with the mIoU of {claim['part']} classes {correlation:+.2f}"
        yield Finding(f"{one['data']} {one['task']} {one['setup']}", f"{text}, {len(last)} methods", verdict)


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


def summary(claim: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """The verdict on a claim: how often it holds among the comparisons that could be decided."""
    if not findings:
        return str(claim.get("otherwise", "not measured yet"))
    decided = [one.verdict for one in findings if not one.verdict.startswith("undecided")]
    if not decided:
        return findings[0].verdict
    held = sum(verdict.startswith(HOLDS) for verdict in decided)
    alone = sum(verdict.endswith(ALONE) for verdict in decided)
    if held in (0, len(decided)):
        text, details = (HOLDS, []) if held else ("does not hold", _reasons(decided))
    else:
        text, details = f"holds in {held} of {len(decided)}", []
    details += [f"{held} of {held}"] if held == len(decided) > 1 else []
    details += ["one seed" if alone == len(decided) else f"{alone} by one seed"] if alone else []
    details += [f"{len(findings) - len(decided)} undecided"] if len(decided) < len(findings) else []
    return text + (f" ({'; '.join(details)})" if details else "")


def _reasons(verdicts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(verdict.removesuffix(ALONE).partition(": ")[2] for verdict in verdicts))
