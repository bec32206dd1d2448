"""What the package writes about finished runs: the HTML report, figures as files, and the page of a collection.

A collection is a folder such as `results/`. Each subfolder holds records of one benchmark (`tiss report RUNS --collect
FOLDER` makes them) and an about.json with its title, the side of its source images, the command that makes the runs,
and notes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiss.engine.run_folder import changed_settings, flatten
from tiss.errors import TissError, suggest
from tiss.evaluation.scores import percent
from tiss.files import read_json, write_json
from tiss.report import plots, tables
from tiss.report.gallery import (
    Numbers,
    collect_gallery,
    experiment_similarity,
    feature_figure,
    gallery_figure,
    last_confusions,
    similarity_figure,
    why_no_similarity,
)
from tiss.report.paper import caption_of, fitting_tables, paper_table, sizes_of
from tiss.report.records import command_of_record
from tiss.report.render import write_page
from tiss.report.runs import Experiment, Result, RunLike, Series, Value, experiments, find_runs, load_results

LEARNED = 10.0  # mIoU in % below which the first classes were hardly learned
KEPT, LOST = 0.05, 0.4  # the share of what it knew that a method may lose: it keeps it, or loses part of it
STORY = {
    "bad": "{} forget{s} the first {n} classes.",
    "part": "{} lose{s} part of the first {n} classes.",
    "good": "{} keep{s} the first {n} classes.",
    "never": "{} hardly learned the first {n} classes: nothing to forget.",
    "bound": "Upper bound, trained on all classes at once: {}.",
}
CHARTS = {
    "steps": plots.miou_over_steps,
    "classes": plots.class_map,
    "forgetting": plots.forgetting_map,
    "differences": plots.difference_figure,
    "confusion": lambda one: plots.confusion_maps(last_confusions(one), one.groups),
}
PANELS = {"predictions": gallery_figure, "features": feature_figure}
KINDS = (*CHARTS, *PANELS, "similarity")
TASKS = ("15-1", "15-5", "19-1")  # in this order; others after them
AGAIN = "-again"  # results/voc-again: runs of results/voc, done a second time


def write_report(
    runs: Iterable[RunLike],
    out: str | Path,
    *,
    title: str = "Incremental semantic segmentation",
    gallery: int = 4,
    images: int = 0,
    root: str | None = None,
    device: str = "cpu",
) -> Path:
    """Writes the page about `runs` (folders or results) and returns its path.

    `gallery` test images are shown with every method's prediction and feature map after every step, and the
    similarity of patch tokens is measured over `images` of them, where the models and data of the runs are there;
    `root` says where the data are now, if they have moved.
    """
    sections = []
    for index, experiment in enumerate(experiments(load_results(runs))):
        section = section_of(experiment, f"e{index}")
        try:
            section["gallery"] = collect_gallery(experiment, gallery, root, device)
        except TissError as error:
            section["missing"] = str(error)
        if images:
            measured = experiment_similarity(experiment, images, root, device)
            section["similarity"] = measured and _with_figure(measured, f"s{index}")
            section["no_similarity"] = "" if measured else why_no_similarity(experiment)
        sections.append(section)
    return write_page(out, "report.html", title=title, sections=sections)


def section_of(experiment: Experiment, name: str, joint: Value | None = None) -> dict[str, Any]:
    """All that `experiment.html` shows of one experiment without its models; `name` keeps ids apart."""
    drawn = {kind: plots.inline_svg(draw(experiment), f"{name}-{kind}") for kind, draw in CHARTS.items()}
    return {
        **dict.fromkeys(("gallery", "missing", "similarity", "no_similarity", "title")),
        "notes": [],
        "experiment": experiment,
        "story": story(experiment),
        "final": tables.final_table(experiment, joint),
        "steps": tables.step_table(experiment),
        "classes": [tables.class_table(experiment), tables.forgetting_table(experiment)],
        "recipe": tables.recipe_lines(experiment.series),
        "papers": [(caption_of(one), paper_table(one, [experiment])) for one in fitting_tables([experiment])],
        "source": sizes_of([experiment]),
        "drawn": drawn,
        "settings": True,
    }


def _with_figure(measured: Numbers, name: str) -> dict[str, Any]:
    return {**measured, "figure": plots.inline_svg(similarity_figure(measured), name)}


def story(experiment: Experiment) -> list[tuple[str, str]]:
    """The headline as (kind, sentence): who forgets the first classes (bad), loses part (part), keeps them (good)."""
    found: dict[str, list[str]] = {kind: [] for kind in STORY}
    for series in experiment.series:
        first, last = (series.mean("old", step, "without_background") for step in (0, -1))
        if first is None or last is None or not series.first.finished:
            continue
        if series.at_once:
            found["bound"].append(f"{series.label} ({percent(last.mean)})")
        elif series.steps > 1:
            lost = 1 - last.mean / max(first.mean, 1e-9)
            kind = "bad" if lost > LOST else "part" if lost > KEPT else "good"
            kind = "never" if first.mean < LEARNED else kind
            found[kind].append(f"{series.label} ({percent(first.mean)} → {percent(last.mean)})")
    told = []
    for kind, names in found.items():
        if names:
            words = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
            text = STORY[kind].format(words, s="s" * (len(names) == 1), n=len(experiment.groups[0]))
            told.append((kind, text))
    return told


def write_figures(
    experiments: Sequence[Experiment],
    folder: Path,
    kinds: Sequence[str] = KINDS,
    root: str | None = None,
    device: str = "cpu",
    *,
    gallery: int = 4,
    images: int = 500,
) -> list[Path]:
    """Writes figures as SVG and PNG into `folder`, named after experiment and kind; returns the files.

    `gallery` test images are shown with predictions and features; similarities are taken over `images` of them, and
    their numbers are written to a JSON file as well. A kind for which the runs lack something is left out; where only
    similarities were asked for and cannot be had, that is an error.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise TissError(suggest(kind, KINDS, "figure"))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for one in experiments:
        name = f"{one.data}-{one.task}-{one.setup}{one.variant}"
        if sum((other.data, other.task) == (one.data, one.task) for other in experiments) > 1:
            name += f"-{one.protocol}" + (f"-holdout{one.holdout:g}" if one.holdout else "")
        path = folder / "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
        drawn = {kind: draw(one) for kind, draw in CHARTS.items() if kind in kinds}
        asked = {kind: draw for kind, draw in PANELS.items() if kind in kinds}
        shown = collect_gallery(one, gallery, root, device, "features" in asked) if asked else None
        for kind, panels in asked.items():
            if shown is not None and (kind == "predictions" or shown.features):
                drawn |= {f"{kind}-{index}": panels(shown, index) for index in range(len(shown.ids))}
        wanted = images and "similarity" in kinds
        measured = experiment_similarity(one, images, root, device) if wanted else None
        if measured:
            drawn["similarity"] = similarity_figure(measured)
            written.append(Path(f"{path}-similarity.json"))
            write_json(written[-1], measured, indent=1)
        for kind, figure in drawn.items():
            if figure is not None:
                paths = [Path(f"{path}-{kind}.{suffix}") for suffix in ("svg", "png")]
                written += [plots.save_figure(figure, path) for path in paths]
    if not written and images and list(kinds) == ["similarity"]:
        reasons = dict.fromkeys(map(why_no_similarity, experiments))
        raise TissError(f"no similarity figure can be drawn from these runs: {'; '.join(reasons)}")
    return written


@dataclass(frozen=True)
class Benchmark:
    """The runs of one table: one data set, task, setup, protocol, holdout and network."""

    folder: Path
    experiment: Experiment
    about: Mapping[str, Any]
    joint: Series | None = None  # offline training with the same network, of whatever task: it knows no steps

    @property
    def encoder(self) -> str:
        return self.experiment.series[0].first.encoder

    @property
    def decoder(self) -> str:
        return self.experiment.series[0].first.decoder

    @property
    def title(self) -> str:
        one, apart = self.experiment, self.about["apart"]
        parts = [f"{self.about['title'] or one.data} {one.task} {one.setup}{one.variant}", self.encoder]
        parts += [] if one.protocol == "paper" else [f"protocol {one.protocol}"]
        parts += [apart] if apart else []
        parts += [f"scored on {100 * one.holdout:.0f} % held out"] if one.holdout else []
        return ", ".join(parts)

    @property
    def source(self) -> str:
        """How large the images were, and what the network saw."""
        settings, side = self.experiment.series[0].first.settings, self.about["side"]
        size = settings.get("eval.size") or settings.get("data.crop")
        if side is None or size is None:
            return "size of the source images not noted"
        change = "" if size == side else f", {'enlarged' if size > side else 'reduced'} to {size}"
        return f"images of {side} px{change}"

    @property
    def bound(self) -> Value | None:
        """All classes of offline training with the same network."""
        return None if self.joint is None else self.joint.mean("all")

    def series(self, method: str, exact_median: bool = False) -> Series | None:
        """The series of a method with its default settings, of those the one with most seeds."""
        known = [one for one in self.experiment.series if one.method == method]
        known = [one for one in known if one.first.exact_median == exact_median]
        plain = [one for one in known if not changed_settings(method, one.first.settings)] or known
        return max(plain, key=lambda one: len(one.results), default=None)


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
            networks.setdefault((result.encoder, result.decoder), []).append(result)
        notes = dict.fromkeys(("title", "side", "apart", "note", "command")) | read_json(about)
        several = [one for members in networks.values() for one in experiments(members)]
        found += [Benchmark(about.parent, one, notes) for one in several]

    def same(one: Benchmark) -> tuple[Any, ...]:  # what offline training depends on
        e = one.experiment
        return e.data, e.protocol, e.holdout, e.trial, one.encoder, one.decoder, one.about["apart"]

    def order(one: Benchmark) -> tuple[Any, ...]:
        e = one.experiment
        task = TASKS.index(e.task) if e.task in TASKS else len(TASKS)
        last = e.holdout > 0, e.data != "voc", e.data, e.setup == "disjoint", task, bool(one.about["apart"])
        return *last, one.encoder.startswith("resnet"), one.folder.name

    joint = {same(one): series for one in reversed(found) if (series := one.series("offline")) is not None}
    return sorted((replace(one, joint=joint.get(same(one))) for one in found), key=order)


def load_similarities(results: Path) -> list[Numbers]:
    """Every similarity figure's numbers."""
    found = [read_json(path) for path in sorted(results.glob("*/*similarity*.json"))]
    return [one for one in found if isinstance(one, dict) and one.get("kind") == "similarity"]


def task_table(members: Sequence[Benchmark]) -> tables.Table:
    """Method × task after the last step, each method with its default settings; for one network."""
    parts, first = ("new", "all"), members[0]
    places = [f"{one.experiment.task} {one.experiment.setup}{one.experiment.variant}" for one in members]
    several = [one for member in members for one in member.experiment.series if not one.at_once]
    order = list(dict.fromkeys(one.method for one in several))
    shown = {(order.index(one.method), one.first.exact_median): one for one in reversed(several)}
    rows = []
    for (method, median), series in sorted(shown.items()):
        own = [member.series(order[method], median) for member in members]
        cells = tuple(one.mean(part) if one else None for one in own for part in parts)
        label = series.label.partition(" (")[0] + (" (exact median)" if median else "")
        rows.append(tables.Row((label,), cells, None if median else "all"))
    if first.joint is not None:
        bound = tuple(first.bound if part == "all" else None for _ in members for part in parts)
        rows.append(tables.Row((first.joint.label,), bound, None, rule=True))
    title = f"{first.about['title']}, {first.encoder}: mIoU in % after the last step; {first.source}"
    columns = tuple(tables.Column(part, place) for place in places for part in parts)
    return tables.Table(title, ("method",), columns, tuple(rows), tuple(tables.median_notes(several)))


def task_tables(found: Iterable[Benchmark]) -> list[tables.Table]:
    """A table over all tasks for every data set and network that was run on several, on the test set."""
    networks: dict[tuple[Any, ...], list[Benchmark]] = {}
    for one in found:
        if not one.experiment.holdout and not one.about["apart"]:
            key = (one.experiment.data, one.experiment.protocol, one.encoder, one.decoder)
            networks.setdefault(key, []).append(one)
    return [task_table(members) for members in networks.values() if len(members) > 1]


def bench_tables(results: Path) -> list[dict[str, Any]]:
    """Every file of results/bench as a name, its machine, heads and rows: a column per key."""
    tables = []
    for path in sorted((results / "bench").glob("*.json")):
        values = read_json(path)
        flat = [flatten(row) for row in values.get("rows") or values.get("memory") or []]
        heads = list(dict.fromkeys(key for row in flat for key in row))
        about = {"date": str(values.get("date") or "")[:10]} | (values.get("environment") or {})
        machine = ", ".join(about[key] for key in ("device", "precision", "date") if about.get(key))
        named = [head.replace("_", " ").replace(".", " ").replace("gib", "GiB") for head in heads]
        rows = [[_bench_text(row.get(head)) for head in heads] for row in flat]
        tables.append({"name": path.stem, "machine": machine, "heads": named, "rows": rows})
    return tables


def _bench_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_bench_text, value))
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return "–" if value is None else str(value)


def write_results(results: Path, out: Path) -> Path:
    """All tables, curves, classes, similarities and benches of a collection as one HTML page."""
    found = load_benchmarks(results)
    sections = []
    for index, one in enumerate(found):
        series = one.experiment.series
        records = [(s.label, command_of_record(s.first.values) or "settings were not kept") for s in series]
        about = [("all of them", one.about["command"])] if one.about["command"] else []
        notes = [f"{one.source.capitalize()}; {one.decoder} decoder.", one.about["note"]]
        # the paper's tables come once, with all rows, and complete settings are in the records
        changed = {"title": one.title, "notes": [*filter(None, notes)], "papers": [], "settings": False}
        commands = {"commands": [*about, *records]}
        sections.append(section_of(one.experiment, f"b{index}", one.bound) | changed | commands)
    tested = [one.experiment for one in found if not one.about["apart"]]
    return write_page(
        out,
        "results.html",
        title="Results",
        tasks=task_tables(found),
        sections=sections,
        papers=[paper_table(name, tested) for name in fitting_tables(tested)],
        similarities=[_with_figure(one, f"sim{at}") for at, one in enumerate(load_similarities(results))],
        benches=bench_tables(results),
    )
