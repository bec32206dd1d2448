"""What `tiss data verify` prints: a protocol of the check that can go into an appendix."""

from __future__ import annotations

from pathlib import Path

from tiss import __version__
from tiss.cli.tables import format_table
from tiss.data.base import Dataset
from tiss.data.folder import Folder
from tiss.data.paired import SPLITS, PairedDataset
from tiss.data.verify import SplitReport, check_split, open_for_checking, shared_pictures
from tiss.errors import TissError
from tiss.scenarios.published import Comparison, compare_lists, compare_task, find_lists, published_tasks
from tiss.scenarios.scenario import load_scenario
from tiss.scenarios.selection import PARTITIONED


def verify_data(
    name: str, root: str | None, tasks: list[str] | None, lists: str | None, decode: bool, form: str
) -> int:
    """Checks files, then lists; prints all of it. Returns 0, or 1 if there is a fault or a difference."""
    dataset, faults = open_for_checking(name, root)
    whole = not isinstance(dataset, Folder) or dataset.has_test()
    reports = [check_split(dataset, split, decode) for split in (SPLITS if whole else SPLITS[:1])]
    _print_files(dataset, reports, decode)
    faults += [fault for report in reports for fault in report.faults]
    for fault in faults:
        print(f"fault: {fault}")
    if faults:
        print(f"\n{len(faults)} faults; mend them, then verify again: lists are compared on whole data only.")
        return 1
    if not whole:
        print("test      no images/test: tiss train and extend keep some pictures for it; tiss run needs one")
        return 0
    for warning in shared_pictures(dataset):
        print(f"warning: {warning}")
    return _verify_lists(dataset, tasks, Path(lists) if lists else None, form)


def _print_files(dataset: Dataset, reports: list[SplitReport], decode: bool) -> None:
    background = "0 = background" if dataset.has_background else "no background"
    how = "every picture and mask decoded" if decode else "every mask decoded, pictures by header and end"
    place = f" at {dataset.root_path()}" if dataset.root_path() else ""
    print(f"data set  {dataset.name}{place}, read by tiss {__version__}")
    print(f"classes   {len(dataset.classes)} ({background}, 255 = ignore); {how}")
    for report in reports:
        small, large = ("×".join(map(str, size)) for size in (report.smallest, report.largest))
        values = sorted(set(report.pixels) - {255})
        span = f"{values[0]} to {values[-1]}" if values else "none"
        void = 100 * report.pixels.get(255, 0) / max(1, sum(report.pixels.values()))
        print(
            f"{report.split:<9} {report.images} images, {small} to {large} pixels, labels {span}, "
            f"{void:.2f} % ignored, {len(report.faults) or 'no'} faults"
        )


def _verify_lists(dataset: Dataset, tasks: list[str] | None, lists: Path | None, form: str) -> int:
    entries = dataset.entries("train") if isinstance(dataset, PairedDataset) else None
    if entries is not None:
        pixels = {id: entry.pixels for id, entry in entries.items()}
    else:
        pixels = {id: dict.fromkeys(values, 1) for id, values in dataset.classes_present("train").items()}
    differences = compare_lists(dataset.name, {split: dataset.ids(split) for split in SPLITS})
    wanted = [(task, setup) for task in tasks or () for setup in ("overlapped", "disjoint")]
    asked = bool(wanted or published_tasks(dataset.name))
    wanted = (
        wanted
        or published_tasks(dataset.name)
        or [(_default(dataset), "overlapped"), (_default(dataset), "disjoint")]
    )
    rows: list[Comparison] = []
    for task, setup in wanted:
        folder = find_lists(lists, task, setup) if lists else None
        use = folder if dataset.name in PARTITIONED and setup == "disjoint" else None
        try:
            scenario = load_scenario(dataset=dataset, task=task, setup=setup, lists=use)
        except TissError as error:
            if asked:
                raise
            print(f"not possible: {task} {setup}: {error}")  # nobody asked for it: no fault of the data
            continue
        rows += compare_task(dataset.name, dataset.classes, pixels, scenario, folder, use is not None)
    print()
    print(
        format_table(
            ("task", "setup", "step", "images", "published", "SHA-256 of the sorted ids", ""),
            map(_row, rows),
            form,
        )
    )
    for line in differences:
        print(f"difference: {line}")
    for row in rows:
        for line in row.explanation:
            print(f"difference: {row.task} {row.setup} step {row.step}: {line}")
    print(_summary(rows))
    if any(not row.comparable for row in rows):
        print(
            f"{dataset.name}'s published partition cannot be made again (its seed was lost): these rows are "
            "the package's own. With the published lists, --lists DIR (DIR/TASK/train-K.npy) compares them."
        )
    return 1 if differences or any(row.same is False for row in rows) else 0


def _default(dataset: Dataset) -> str:
    task = getattr(dataset, "default_task", "")
    if not task:
        raise TissError(f"--task: {dataset.name} has no task of its own; name one, such as 2-1")
    return str(task)


def _row(row: Comparison) -> tuple[str, ...]:
    published = "–" if row.published_images is None else str(row.published_images)
    verdict = {True: "same" if row.published_sha256 else "same count", False: "DIFFERS", None: ""}[row.same]
    if not row.comparable:
        verdict = "own partition"
    return (row.task, row.setup, str(row.step), str(row.images), published, row.sha256[:16], verdict)


def _summary(rows: list[Comparison]) -> str:
    known = [row for row in rows if row.same is not None]
    if not known:
        return "Nothing is published of these lists."
    hashed = sum(1 for row in known if row.same and row.published_sha256)
    counted = sum(1 for row in known if row.same and not row.published_sha256)
    parts = [
        f"{hashed} of {sum(1 for row in known if row.published_sha256)} published lists confirmed by SHA-256"
    ]
    if any(not row.published_sha256 for row in known):
        parts.append(f"{counted} of {sum(1 for row in known if not row.published_sha256)} by their count")
    return ", ".join(parts) + "."
