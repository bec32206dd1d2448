"""Reads every image and mask and lists all faults at once; then makes each step's list of images from the masks and
compares it with the published count and SHA-256. The output can go into an appendix as it is. The exit code is 1 if
anything is wrong.

Examples:
  tiss data verify voc --root VOCdevkit
  tiss data verify voc --root VOCdevkit --task 15-1,19-1 --table latex
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tiss import __version__
from tiss.config import REQUIRED, setting
from tiss.errors import TissError

if TYPE_CHECKING:
    from tiss.data.base import Dataset
    from tiss.data.verify import SplitReport
    from tiss.scenarios.published import Comparison


@dataclass(frozen=True)
class Options:
    data: str = setting(REQUIRED, "voc, ade20k, cityscapes, folder, huggingface or a plug-in's", positional=True,
                        sets="data.name")  # fmt: skip
    root: str | None = setting(None, "folder that holds the data set", sets="data.root")
    task: tuple[str, ...] | None = setting(None, "tasks to list, with commas (None: all published)")
    lists: str | None = setting(None, "folder of published lists, TASK-SETUP/train-K.txt or .npy")
    quick: bool = setting(False, "do not decode images, only check headers and ends")
    table: Literal["text", "markdown", "latex"] = setting("text", "form of the table")


def run(options: Options) -> int:
    """Checks files, then lists; prints all of it. Returns 0, or 1 if there is a fault or a difference."""
    from tiss.data.base import SPLITS
    from tiss.data.folder import Folder
    from tiss.data.verify import check_split, open_for_checking, shared_images

    dataset, faults = open_for_checking(options.data, options.root)
    whole = not isinstance(dataset, Folder) or dataset.has_test()
    reports = [check_split(dataset, split, not options.quick) for split in (SPLITS if whole else SPLITS[:1])]
    _print_files(dataset, reports, options.quick)
    faults += [fault for report in reports for fault in report.faults]
    for fault in faults:
        print(f"fault: {fault}")
    if faults:
        print(
            f"\nfaults: {len(faults)}; correct them, then verify again: lists are compared on whole data only"
        )
        return 1
    if not whole:
        print("test      no images/test: tiss train and extend hold some images out; tiss run needs one")
        return 0
    for warning in shared_images(dataset):
        print(f"warning: {warning}")
    return _verify_lists(dataset, options)


def _print_files(dataset: Dataset, reports: list[SplitReport], quick: bool) -> None:
    background = "0 = background" if dataset.has_background else "no background"
    how = "every mask decoded, images by header and end" if quick else "every image and mask decoded"
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
            f"{void:.2f} % ignored, faults: {len(report.faults) or 'none'}"
        )


def _verify_lists(dataset: Dataset, options: Options) -> int:
    from tiss.cli.tables import format_table
    from tiss.data.base import SPLITS
    from tiss.data.stats import pixel_counts
    from tiss.scenarios.published import compare_lists, compare_task, find_lists, published_tasks
    from tiss.scenarios.scenario import load_scenario
    from tiss.scenarios.selection import PARTITIONED

    wanted = [(task, setup) for task in options.task or () for setup in ("overlapped", "disjoint")]
    wanted = wanted or published_tasks(dataset.name)
    asked = bool(wanted)
    if not asked and not dataset.default_task:
        raise TissError(f"{dataset.name} has no task of its own; name one, such as 2-1", setting="task")
    pixels = pixel_counts(dataset, "train")
    differences = compare_lists(dataset.name, {split: dataset.ids(split) for split in SPLITS})
    rows: list[Comparison] = []
    for task, setup in wanted or [(dataset.default_task, "overlapped"), (dataset.default_task, "disjoint")]:
        folder = find_lists(Path(options.lists), task, setup) if options.lists else None
        use = folder if dataset.name in PARTITIONED and setup == "disjoint" else None
        try:
            scenario = load_scenario(dataset=dataset, task=task, setup=setup, lists=use)
        except TissError as error:
            if asked:
                raise
            print(
                f"not possible: {task} {setup}: {error.message}"
            )  # nobody asked for it: no fault of the data
            continue
        rows += compare_task(dataset.name, dataset.classes, pixels, scenario, folder, use is not None)
    header = ("task", "setup", "step", "images", "published", "SHA-256 of the sorted ids", "")
    print(f"\n{format_table(header, map(_row, rows), options.table)}")
    differences += [
        f"{row.task} {row.setup} step {row.step}: {line}" for row in rows for line in row.explanation
    ]
    for line in differences:
        print(f"difference: {line}")
    print(_summary(rows))
    if any(not row.comparable for row in rows):
        print(
            f"{dataset.name}'s published partition cannot be made again (its seed was lost): these rows are "
            "the package's own. With the published lists, --lists DIR (DIR/TASK/train-K.npy) compares them."
        )
    return 1 if differences or any(row.same is False for row in rows) else 0


def _row(row: Comparison) -> tuple[str, ...]:
    published = "–" if row.published_images is None else str(row.published_images)
    verdict = {True: "same" if row.published_sha256 else "same count", False: "DIFFERS", None: ""}[row.same]
    if not row.comparable:
        verdict = "own partition"
    return (row.task, row.setup, str(row.step), str(row.images), published, row.sha256[:16], verdict)


def _summary(rows: list[Comparison]) -> str:
    known = [row for row in rows if row.same is not None]
    parts = []
    for hashed, words in ((True, "published lists confirmed by SHA-256"), (False, "by their count")):
        those = [row for row in known if bool(row.published_sha256) == hashed]
        if those:
            parts.append(f"{sum(bool(row.same) for row in those)} of {len(those)} {words}")
    return f"{', '.join(parts)}." if parts else "Nothing is published of these lists."
