"""Writes results.md, claims.md and contrast.md of docs/, with their figures, from the records in results/.

    python -m tools.results [--results results] [--docs docs]

Prints every comparison that answers one of the paper's claims (claims.yaml), and what the rule says about it.
"""

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tiss.engine.run_folder import changed_settings, what_was_done
from tiss.evaluation.scores import percent
from tiss.files import write_text
from tiss.methods.base import settings_from
from tiss.report.gallery import Numbers, points_of
from tiss.report.pages import AGAIN, Benchmark, bench_tables, load_benchmarks, load_similarities, task_table
from tiss.report.plots import difference_figure, miou_over_steps, save_figure
from tiss.report.render import to_markdown
from tiss.report.runs import PLACE, Experiment, Result, Series, Value, find_runs, load_results
from tiss.report.tables import PARTS, Cell, Column, Row, Table, final_table

HERE = Path(__file__).resolve().parent
PAGES = ("results.md", "claims.md", "contrast.md")
READINGS = ("mib+cd", "mib+ct", "tiss")  # methods whose losses have several readings
BESIDE = (*READINGS, "mib+l1", "mib+l2")  # what the table of readings shows beside MiB
STRONG = 0.8  # a rank correlation below which one value does not go with another
MANY = 6  # methods of which random ranks correlate as well less than one time in twenty
ENOUGH = 3  # seeds from which on a deviation is trusted
HOLDS, OPEN = "holds", "undecided: one seed"
WITHIN, REVERSE = "does not hold: within the deviation", "does not hold: the reverse"
ALONE = " (one seed)"  # after a verdict for which the largest deviation of all was used
Side = tuple[Benchmark, Series | None]
Measure = Callable[[Benchmark, Series], Value | None]


@dataclass(frozen=True)
class Finding:
    """One comparison: where, what against what, and what the rule says."""

    where: str
    figures: str
    verdict: str


def network(one: Benchmark) -> str:
    return "cnn" if one.encoder.startswith("resnet") else "vit"


def place(one: Benchmark) -> tuple[str, str, str]:
    return one.experiment.data, one.experiment.task, one.experiment.setup


def answered_claims(found: Sequence[Benchmark], measured: Sequence[Numbers]) -> list[dict[str, Any]]:
    """Every claim with its findings and the verdict on them; only real data, scored on the test set, count."""
    scored = [one for one in found if one.experiment.data != "shapes" and not one.experiment.holdout]
    scored = [one for one in scored if not one.about["apart"]]
    answers = []
    for number, claim in enumerate(yaml.safe_load((HERE / "claims.yaml").read_text(encoding="utf-8")), 1):
        ask = {None: lambda *_: [], "follows": follows, "ratio": ratio}.get(claim.get("ask"), compared)
        findings = list(ask(claim, measured if ask is follows else scored))
        verdict = summary(claim, findings)
        answers.append({"caution": "", **claim, "number": number, "findings": findings, "verdict": verdict})
    return answers


def decide(better: Value, worse: Value, assumed: float | None = None) -> str:
    """Whether `better` is above `worse` by more than twice the larger deviation over seeds.

    A side with one seed has none: `assumed` is used there, and what lies within twice of it stays undecided.
    """
    known = [one for one in (better.deviation, worse.deviation) if one is not None]
    alone = len(known) < 2
    if alone and not assumed:
        return OPEN
    difference = better.mean - worse.mean
    if abs(difference) <= 2 * max([*known, *([assumed] if alone and assumed else [])]):
        return OPEN if alone else WITHIN
    return (HOLDS if difference > 0 else REVERSE) + (ALONE if alone else "")


def kept(benchmark: Benchmark, series: Series) -> Value | None:
    """Old classes after the last step as a share of those of offline training with the same network."""
    offline = benchmark.series("offline")
    bound = None if offline is None else offline.mean("old")
    olds = [result.steps[-1].old.headline for result in series.results]
    return None if bound is None else Value.of(None if old is None else old / bound.mean for old in olds)


def largest_deviation(benchmarks: Sequence[Benchmark], measure: Measure) -> float | None:
    """Over seeds, of any method: how far a single run may be off, at the most that was seen."""
    values = [measure(one, series) for one in benchmarks for series in one.experiment.series]
    known = [one.deviation for one in values if one is not None and one.count >= ENOUGH and one.deviation]
    return max(known, default=None)


def pairs(claim: Mapping[str, Any], scored: Sequence[Benchmark]) -> Iterator[tuple[str, Side, Side]]:
    """What a claim compares: where, and both sides as a benchmark and the series of a method there."""
    if claim["ask"] == "versus":
        for rival, one in itertools.product(claim["worse"], scored):
            if claim.get("network") in (None, network(one)):
                yield one.title, (one, one.series(claim["better"])), (one, one.series(rival))
    elif claim["ask"] == "best":  # it takes two rivals to speak of a best
        for one in (one for one in scored if network(one) == "vit"):
            rivals = [series for name in claim["rivals"] if (series := one.series(name)) is not None]
            ranked = sorted(rivals, key=lambda series: getattr(series.mean("all"), "mean", -1.0))
            if len(ranked) > 1:
                yield one.title, (one, one.series(claim["method"])), (one, ranked[-1])
    else:
        for one, other in itertools.product(scored, repeat=2):
            if claim["ask"] == "harder":  # the same five classes at once and one after another
                same = place(one)[::2] == place(other)[::2] and one.encoder == other.encoder
                same &= (place(one)[1], place(other)[1]) == ("15-5", "15-1")
            else:
                same = place(one) == place(other) and (network(one), network(other)) == ("vit", "cnn")
            for better, worse in claim.get("pairs", [("mib", "mib")]) if same else []:
                yield " ".join(place(one)), (one, one.series(better)), (other, other.series(worse))


def compared(claim: Mapping[str, Any], scored: Sequence[Benchmark]) -> Iterator[Finding]:
    """One finding per pair and part that were measured on both sides."""
    share = claim.get("measure") == "kept"
    digits = 3 if share else 1
    for where, *sides in pairs(claim, scored):
        for part in claim.get("parts", ["all"]):
            measure: Measure = kept if share else lambda _, series, part=part: series.mean(part)
            values = [None if series is None else measure(one, series) for one, series in sides]
            first, second = values
            if first is None or second is None:
                continue
            texts = []
            for (one, series), value in zip(sides, (first, second), strict=True):
                more = [one.encoder] if sides[0][0].encoder != sides[1][0].encoder else []
                more += [place(one)[1]] if place(sides[0][0])[1] != place(sides[1][0])[1] else []
                spread = "" if value.deviation is None else f" ± {value.deviation:.{digits}f}"
                texts.append(
                    " ".join([getattr(series, "label", ""), *more, f"{value.mean:.{digits}f}{spread}"])
                )
            change = f"{first.mean - second.mean:+.{digits}f}"
            head = "old as a share of offline" if share else part
            verdict = decide(first, second, largest_deviation(scored, measure))
            yield Finding(where, f"{head}: {' against '.join(texts)} ({change})", verdict)


def ratio(claim: Mapping[str, Any], scored: Sequence[Benchmark]) -> Iterator[Finding]:
    """All classes over offline's with the same encoder; it holds at the target on average."""
    for one in scored:
        sides = [one.series(name) for name in (claim["method"], "offline")]
        own, bound = (None if series is None else series.mean("all") for series in sides)
        if own and bound and network(one) == "vit" and place(one)[1:] == ("15-1", "overlapped"):
            share = own.mean / bound.mean
            verdict = HOLDS if share >= claim["target"] else f"does not hold: below {claim['target']:g}"
            label = getattr(sides[0], "label", "")
            yield Finding(one.title, f"all: {label} {own} of {bound}: {share:.3f}", verdict)


def follows(claim: Mapping[str, Any], measured: Sequence[Numbers]) -> Iterator[Finding]:
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
    """The correlation of ranks; equal values share their mean rank."""
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
    reasons = list(dict.fromkeys(verdict.removesuffix(ALONE).partition(": ")[2] for verdict in decided))
    if held in (0, len(decided)):
        text, details = (HOLDS, []) if held else ("does not hold", reasons)
    else:
        text, details = f"holds in {held} of {len(decided)}", []
    details += [f"{held} of {held}"] if held == len(decided) > 1 else []
    details += ["one seed" if alone == len(decided) else f"{alone} by one seed"] if alone else []
    details += [f"{len(findings) - len(decided)} undecided"] if len(decided) < len(findings) else []
    return text + (f" ({'; '.join(details)})" if details else "")


def reading_table(one: Benchmark) -> Table | None:
    """Every reading of the paper's losses beside MiB, over the seeds that both have."""
    base = one.series("mib")
    shown = [s for s in one.experiment.series if s.method in BESIDE and s.first.finished]
    if base is None or not any(series.method in READINGS for series in shown):
        return None
    rows = []
    for series in (base, *shown):
        cells: list[Cell] = [series.mean(part) for part in PARTS]
        for part in PARTS:
            own, other = (side.mean(part) for side in shared(series, base))
            if series is base or own is None or other is None:
                cells.append(None)
            else:
                sign = {HOLDS: " ↑", REVERSE: " ↓"}.get(decide(own, other), "")
                cells.append(f"{round(own.mean - other.mean, 1) + 0.0:+.1f}{sign}")
        rows.append(Row((series.label, str(len(series.results))), tuple(cells), None))
    columns = tuple(Column(name) for name in (*PARTS, *(f"{part} − MiB" for part in PARTS)))
    return Table("", ("reading", "seeds"), columns, tuple(rows))


def shared(one: Series, other: Series) -> list[Series]:
    """Both series with the seeds that both have; as they are where they share none."""
    seeds = [{result.values["seed"] for result in series.results} for series in (one, other)]
    both = seeds[0] & seeds[1] or seeds[0] | seeds[1]
    return [replace(s, results=tuple(r for r in s.results if r.values["seed"] in both)) for s in (one, other)]


def glossary(found: Sequence[Benchmark]) -> list[tuple[str, str, Any]]:
    """The settings that labels of readings name: name, help, default in `tiss`."""
    several = [s for one in found for s in one.experiment.series if s.method in READINGS]
    named = {key for series in several for key in changed_settings(series.method, series.first.settings)}
    known = [field for field in fields(settings_from("tiss")) if field.name in named]
    return [(field.name, field.metadata["help"], field.default) for field in known]


def repeat_rows(results: Path) -> list[tuple[str, ...]]:
    """Runs that were done twice: name, old, new and all of both, and the largest difference of a class."""

    def identity(one: Result) -> list[Any]:
        return [*(one.values.get(key) for key in (*PLACE, "method", "seed")), what_was_done(one.settings)]

    rows = []
    for folder in sorted(results.glob(f"*{AGAIN}")):
        first = load_results(find_runs([folder.with_name(folder.name.removesuffix(AGAIN))]))
        for again in load_results(find_runs([folder])):
            for one in (one for one in first if identity(one) == identity(again)):
                ends = one.steps[-1], again.steps[-1]
                means = [" → ".join(percent(getattr(end, part).headline) for end in ends) for part in PARTS]
                pairs = zip(ends[0].iou.values(), ends[1].iou.values(), strict=True)
                gaps = [abs(value - other) for value, other in pairs if None not in (value, other)]
                rows.append((str(one.values.get("name")), *means, f"{max(gaps):.2f}"))
    return rows


def folder_table(members: Sequence[Benchmark]) -> Table:
    """The table of results.md on one folder: by task where it has several, else with more columns."""
    if len(members) > 1:
        return task_table(members)
    wanted = {("with background", part) for part in PARTS} | {("without background", "all")}
    table = final_table(members[0].experiment, members[0].bound)
    table = table.only(lambda c: (c.group, c.name) in wanted or c.name in ("forgotten", "all / offline"))
    return replace(table, columns=tuple(map(plain_head, table.columns)))


def plain_head(column: Column) -> Column:
    name = f"{column.name}, without b" if column.group == "without background" else column.name
    return replace(column, group="", name=name)


def write_docs(results: Path, docs: Path) -> list[dict[str, Any]]:
    """Writes the pages with their figures into the folder docs/; returns the claims with their findings."""
    found = load_benchmarks(results)
    folders: dict[Path, list[Benchmark]] = {}
    for one in found:
        if not one.experiment.holdout:
            folders.setdefault(one.folder, []).append(one)
    tables = [(members[0], len(members), folder_table(members)) for members in folders.values()]
    held, readings = next(
        ((one, table) for one in found if one.experiment.holdout and (table := reading_table(one))),
        (None, None),
    )
    values: dict[str, Any] = {
        "lifted": [
            f"{row.labels[0]} ({part})"
            for row in (readings.rows if readings else ())
            for part, cell in zip(PARTS, row.cells[len(PARTS) :], strict=True)
            if "↑" in str(cell)
        ],
        "tables": tables,
        "claims": answered_claims(found, load_similarities(results)),
        "held": held,
        "readings": readings and readings.only(lambda column: "all" not in column.name),
        "glossary": glossary(found),
        "repeats": repeat_rows(results),
        "benches": bench_tables(results),
        "markdown": lambda table: to_markdown(replace(table, title="", notes=())),
    }
    loader = FileSystemLoader(HERE / "pages")
    pages = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    for name in PAGES:
        write_text(docs / name, pages.get_template(name).render(values).strip() + "\n")
    save_figure(miou_over_steps(found[0].experiment), docs / "images" / "results-steps.png")
    if held is not None and (drawn := difference_figure(readings_only(held))) is not None:
        save_figure(drawn, docs / "images" / "results-contrast.png")
    claims: list[dict[str, Any]] = values["claims"]
    return claims


def readings_only(one: Benchmark) -> Experiment:
    series = tuple(series for series in one.experiment.series if series.method in ("mib", *BESIDE))
    return replace(one.experiment, series=series)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    options = parser.parse_args()
    for claim in write_docs(options.results, options.docs):
        print(f"{claim['number']}. {claim['text']} {claim['verdict']}")
        for one in claim["findings"]:
            print(f"   {one.where}: {one.figures}: {one.verdict}")


if __name__ == "__main__":
    main()
