"""The records of a folder such as `results/`: everything as one HTML page, and the short pages of docs/.

Each subfolder holds records of one benchmark (`tiss report RUNS --collect FOLDER` makes them) and an about.json with
its title, the side of its source images, the command that makes the runs, and notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tiss.engine.settings import changed_settings, flatten, what_was_done
from tiss.errors import TissError
from tiss.files import read_json, write_text
from tiss.methods.base import settings_from
from tiss.report.claims import HOLDS, REVERSE, decide, findings_on, load_claims, summary
from tiss.report.html import render, write_page
from tiss.report.page import section_of, similarity_part
from tiss.report.paper import fitting_tables, paper_table
from tiss.report.plots import difference_figure, inline_svg, miou_over_steps, save_figure
from tiss.report.records import command_of_record
from tiss.report.render import to_markdown
from tiss.report.runs import Experiment, Result, Series, Value, experiments, find_runs, load_results
from tiss.report.similarity import KIND, Numbers
from tiss.report.tables import Cell, Column, Row, Table, averages_of, final_table, mean_of, median_notes

TASKS = ("15-1", "15-5", "19-1")  # in this order; others after them
SETUPS = ("overlapped", "disjoint")
READINGS = ("mib+cd", "mib+ct", "tiss")  # methods whose losses have several readings
PARTS = ("old", "new", "all")
AGAIN = "-again"  # results/voc-again: runs of results/voc, done a second time


@dataclass(frozen=True)
class Benchmark:
    """The runs of one table: one data set, task, setup, protocol, holdout and network."""

    folder: Path
    experiment: Experiment
    encoder: str
    decoder: str
    about: Mapping[str, Any]
    joint: Series | None = None  # offline training with the same network, of whatever task: it knows no steps

    @property
    def network(self) -> str:
        return "cnn" if self.encoder.startswith("resnet") else "vit"

    @property
    def place(self) -> tuple[str, str, str]:
        return self.experiment.data, self.experiment.task, self.experiment.setup

    @property
    def title(self) -> str:
        one = self.experiment
        parts = [f"{self.about['title'] or one.data} {one.task} {one.setup}, {self.encoder}"]
        parts += [] if one.protocol == "paper" else [f"protocol {one.protocol}"]
        parts += [self.about["apart"]] if self.about["apart"] else []
        return ", ".join(
            [*parts, *([f"scored on {100 * one.holdout:.0f} % held out"] if one.holdout else [])]
        )

    @property
    def source(self) -> str:
        """How large the images were, and what the network saw."""
        settings, side = self.experiment.series[0].first.settings, self.about["side"]
        size = settings.get("eval.size") or settings.get("data.crop")
        if side is None or size is None:
            return "size of the source images not noted"
        change = "" if size == side else f", {'enlarged' if size > side else 'reduced'} to {size}"
        return f"images of {side} px{change}"

    def series(self, method: str) -> Series | None:
        """The series of a method with its default settings, of those the one with most seeds; no PLOP of 0.1."""
        found = [one for one in self.experiment.series if one.method == method and not one.first.exact_median]
        plain = [one for one in found if not changed_settings(method, one.first.settings)] or found
        return max(plain, key=lambda one: len(one.results), default=None)

    def last(self, series: Series, part: str) -> Value | None:
        """A mean after the last step, with the background where that is a class."""
        return series.value(-1, mean_of(part, averages_of(self.experiment)[0]))

    @property
    def bound(self) -> Value | None:
        """All classes of offline training with the same network."""
        return None if self.joint is None else self.last(self.joint, "all")


def is_collection(path: Path) -> bool:
    """Whether a folder holds folders of records with their about.json."""
    return path.is_dir() and any(path.glob("*/about.json"))


def load_benchmarks(results: Path) -> list[Benchmark]:
    """All benchmarks that a collection has records of, in the order in which pages show them."""
    found: list[Benchmark] = []
    for about in sorted(results.glob("*/about.json")):
        if about.parent.name.endswith(AGAIN):
            continue
        networks: dict[tuple[str, str], list[Result]] = {}
        for result in load_results(find_runs([about.parent])):
            key = (str(result.values["encoder"]), str(result.values["decoder"]))
            networks.setdefault(key, []).append(result)
        notes = dict.fromkeys(("title", "side", "apart", "note", "command")) | read_json(about)
        for network, members in networks.items():
            found += [Benchmark(about.parent, one, *network, notes) for one in experiments(members)]

    def same(one: Benchmark) -> tuple[Any, ...]:  # what offline training depends on
        e = one.experiment
        return e.data, e.protocol, e.holdout, one.encoder, one.decoder, one.about["apart"]

    joint = {same(one): series for one in reversed(found) if (series := one.series("offline")) is not None}
    return sorted((replace(one, joint=joint.get(same(one))) for one in found), key=_order)


def _order(one: Benchmark) -> tuple[Any, ...]:
    e = one.experiment
    task = TASKS.index(e.task) if e.task in TASKS else len(TASKS)
    last = e.holdout > 0, e.data != "voc", e.data, SETUPS.index(e.setup), task
    return *last, bool(one.about["apart"]), one.network == "cnn", one.folder.name


def load_similarities(results: Path) -> list[Numbers]:
    """Every similarity figure's numbers."""
    found = [read_json(path) for path in sorted(results.glob("*/*similarity*.json"))]
    return [one for one in found if isinstance(one, dict) and one.get("kind") == KIND]


def task_table(members: Sequence[Benchmark], parts: Sequence[str] = ("new", "all")) -> Table:
    """Method × task after the last step, each method with its default settings; for one network."""
    columns = [
        Column(part, f"{one.experiment.task} {one.experiment.setup}") for one in members for part in parts
    ]
    methods = {
        (series.method, series.first.exact_median): series
        for one in reversed(members)
        for series in one.experiment.series
        if not series.at_once
    }
    order = [s.method for one in members for s in one.experiment.series]
    rows = []
    for (method, median), shown in sorted(methods.items(), key=lambda item: order.index(item[0][0])):
        cells: list[Cell] = []
        for one in members:
            plops = [s for s in one.experiment.series if s.method == method and s.first.exact_median]
            series = plops[0] if median and plops else one.series(method)
            cells += [None if series is None else one.last(series, part) for part in parts]
        label = shown.label.partition(" (")[0] + (" (exact median)" if median else "")
        rows.append(Row((label,), tuple(cells), None if median else "all"))
    first = members[0]
    if first.joint is not None:
        bound = [first.bound if part == "all" else None for _ in members for part in parts]
        rows.append(Row((first.joint.label,), tuple(bound), None, rule=True))
    title = f"{first.about['title']}, {first.encoder}: mIoU in % after the last step; {first.source}"
    notes = median_notes(series for one in members for series in one.experiment.series)
    return Table(title, ("method",), tuple(columns), tuple(rows), tuple(notes))


def task_tables(found: Iterable[Benchmark]) -> list[Table]:
    """A table over all tasks for every data set and network that was run on several, on the test set."""
    networks: dict[tuple[Any, ...], list[Benchmark]] = {}
    for one in found:
        if not one.experiment.holdout and not one.about["apart"]:
            key = (one.experiment.data, one.experiment.protocol, one.encoder, one.decoder)
            networks.setdefault(key, []).append(one)
    return [task_table(members) for members in networks.values() if len(members) > 1]


def reading_table(one: Benchmark) -> Table | None:
    """Every reading of the paper's losses beside MiB, over the seeds that both have."""
    base = one.series("mib")
    shown = [
        s for s in one.experiment.series if s.method in (*READINGS, "mib+l1", "mib+l2") and s.first.finished
    ]
    if base is None or not any(series.method in READINGS for series in shown):
        return None
    columns = [Column(name) for name in (*PARTS, *(f"{part} − MiB" for part in PARTS))]
    rows = [_reading_row(one, base, None)] + [_reading_row(one, series, base) for series in shown]
    title = f"{one.title}: mIoU in % after the last step; {one.source}"
    note = "↑ above and ↓ below MiB by more than twice the larger deviation over seeds."
    return Table(title, ("reading", "seeds"), tuple(columns), tuple(rows), (note,))


def _reading_row(one: Benchmark, series: Series, base: Series | None) -> Row:
    cells: list[Cell] = [one.last(series, part) for part in PARTS]
    for part in PARTS:
        pair = [one.last(side, part) for side in _shared(series, base)] if base is not None else [None, None]
        own, other = pair
        if own is None or other is None:
            cells.append(None)
        else:
            sign = {HOLDS: " ↑", REVERSE: " ↓"}.get(decide(own, other), "")
            cells.append(f"{round(own.mean - other.mean, 1) + 0.0:+.1f}{sign}")
    return Row((series.label, str(len(series.results))), tuple(cells), None)


def _shared(one: Series, other: Series) -> list[Series]:
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
    rows = []
    for folder in sorted(results.glob(f"*{AGAIN}")):
        first = load_results(find_runs([folder.with_name(folder.name.removesuffix(AGAIN))]))
        for again in load_results(find_runs([folder])):
            for one in (one for one in first if _identity(one) == _identity(again)):
                ends = one.steps[-1], again.steps[-1]
                means = [" → ".join(f"{getattr(end, part).headline:.1f}" for end in ends) for part in PARTS]
                gaps = [
                    abs(value - other)
                    for value, other in zip(ends[0].iou.values(), ends[1].iou.values(), strict=True)
                    if value is not None and other is not None
                ]
                rows.append((str(one.values.get("name")), *means, f"{max(gaps):.2f}"))
    return rows


def _identity(result: Result) -> str:
    places = [
        result.values[key] for key in ("data", "task", "setup", "protocol", "holdout", "method", "seed")
    ]
    return str((places, sorted(map(str, what_was_done(result.settings).items()))))


def bench_tables(results: Path) -> list[dict[str, Any]]:
    """Every file of results/bench as a name, its machine, heads and rows: a column per key."""
    tables = []
    for path in sorted((results / "bench").glob("*.json")):
        values = read_json(path)
        flat = [flatten(row) for row in values.get("rows") or values.get("memory") or []]
        heads = list(dict.fromkeys(key for row in flat for key in row))
        rows = [[_bench_text(row.get(head)) for head in heads] for row in flat]
        environment = values.get("environment") or {}
        machine = [
            environment.get("device"),
            environment.get("precision"),
            str(values.get("date") or "")[:10],
        ]
        heads = [head.replace("_", " ").replace(".", " ").replace("gib", "GiB") for head in heads]
        name, where = path.stem, ", ".join(part for part in machine if part)
        tables.append({"name": name, "machine": where, "heads": heads, "rows": rows})
    return tables


def _bench_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    if isinstance(value, list):
        return ", ".join(map(_bench_text, value))
    return "–" if value is None else str(value)


def answered_claims(found: Sequence[Benchmark], results: Path) -> list[dict[str, Any]]:
    """Every claim with its findings and the verdict on them."""
    measured = load_similarities(results)
    answers = []
    for number, claim in enumerate(load_claims(), 1):
        findings = findings_on(claim, found, measured)
        verdict = summary(claim, findings)
        answers.append({"caution": "", **claim, "number": number, "findings": findings, "verdict": verdict})
    return answers


def write_results(results: Path, out: Path) -> Path:
    """All tables, curves, classes, claims, readings and benchmarks of a collection as one HTML page."""
    found = load_benchmarks(results)
    if not found:
        raise TissError(f"{results} holds no folders of records with an about.json")
    sections = []
    for index, one in enumerate(found):
        section = section_of(one.experiment, f"b{index}", one.bound)
        notes = [
            f"{one.source.capitalize()}; {one.decoder} decoder.",
            *([one.about["note"]] if one.about["note"] else []),
        ]
        commands = [
            (series.label, command_of_record(series.first.values) or "settings were not kept")
            for series in one.experiment.series
        ]
        if one.about["command"]:
            commands.insert(0, ("all of them", one.about["command"]))
        # the paper's tables come once, with all rows, and complete settings are in the records
        section |= {"title": one.title, "notes": notes, "papers": [], "settings": [], "commands": commands}
        sections.append(section)
    tested = [one.experiment for one in found if not one.about["apart"]]
    readings = [(table, one) for one in found if (table := reading_table(one)) is not None]
    return write_page(
        out,
        "results.html",
        title="Results",
        tasks=task_tables(found),
        sections=sections,
        claims=answered_claims(found, results),
        readings=[(table, _reading_svg(one, f"r{i}")) for i, (table, one) in enumerate(readings)],
        glossary=glossary(found),
        papers=[paper_table(name, tested) for name in fitting_tables(tested)],
        similarities=[
            (f"{one['data']} {one['task']} {one['setup']}", similarity_part(one, f"sim{index}"))
            for index, one in enumerate(load_similarities(results))
        ],
        repeats=repeat_rows(results),
        benches=bench_tables(results),
    )


def _readings_only(one: Benchmark) -> Experiment:
    methods = ("mib", "mib+l1", "mib+l2", *READINGS)
    return replace(
        one.experiment, series=tuple(series for series in one.experiment.series if series.method in methods)
    )


def _reading_svg(one: Benchmark, name: str) -> Any:
    shown = _readings_only(one)
    drawn = difference_figure(shown) if len(shown.series) > 3 else None
    return None if drawn is None else inline_svg(drawn, name)


def write_docs(results: Path, docs: Path) -> list[Path]:
    """Writes results.md, claims.md and contrast.md with their figures into the folder docs/; returns the files."""
    found = load_benchmarks(results)
    folders: dict[Path, list[Benchmark]] = {}
    for one in found:
        if not one.experiment.holdout:
            folders.setdefault(one.folder, []).append(one)
    tables = [(members[0], len(members), _doc_table(members)) for members in folders.values()]
    held = next((one for one in found if one.experiment.holdout and reading_table(one)), None)
    readings = None if held is None else reading_table(held)
    lifted = [
        f"{row.labels[0]} ({part})"
        for row in (readings.rows if readings else ())
        for part, cell in zip(PARTS, row.cells[len(PARTS) :], strict=True)
        if "↑" in str(cell)
    ]
    values: dict[str, Any] = {
        "lifted": lifted,
        "tables": tables,
        "claims": answered_claims(found, results),
        "held": held,
        "readings": None if readings is None else readings.only(lambda column: "all" not in column.name),
        "glossary": glossary(found),
        "repeats": repeat_rows(results),
        "benches": bench_tables(results),
        "markdown": lambda table: to_markdown(replace(table, title="", notes=())),
    }
    written = []
    for name in ("results.md", "claims.md", "contrast.md"):
        write_text(docs / name, render(name, **values).strip() + "\n")
        written.append(docs / name)
    written.append(save_figure(miou_over_steps(found[0].experiment), docs / "images" / "results-steps.png"))
    if held is not None and (drawn := difference_figure(_readings_only(held))) is not None:
        written.append(save_figure(drawn, docs / "images" / "results-contrast.png"))
    return written


def _doc_table(members: Sequence[Benchmark]) -> Table:
    """The table of docs/results.md on one folder: by task where it has several, else with more columns."""
    if len(members) > 1:
        return task_table(members)
    one = members[0]
    table = final_table(one.experiment, one.bound)
    wanted = {("with background", part) for part in PARTS} | {("without background", "all")}
    kept = table.only(lambda c: (c.group, c.name) in wanted or c.name in ("forgotten", "all / offline"))
    columns = tuple(
        replace(c, group="", name=f"{c.name}, without b" if c.group == "without background" else c.name)
        for c in kept.columns
    )
    return replace(kept, columns=columns)
