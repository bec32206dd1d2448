"""What `tiss data stats` prints: classes, pixels, images, and the images of each step."""

from __future__ import annotations

from pathlib import Path

from tiss.cli.tables import format_table
from tiss.data.base import DATASETS, Dataset
from tiss.data.stats import ClassCount, count_classes, plot_counts
from tiss.errors import TissError
from tiss.scenarios.scenario import Scenario, load_scenario

SETUPS = ("overlapped", "disjoint")


def print_stats(
    name: str, root: str | None, task: str | None, order: str | None, plot: str | None, form: str
) -> int:
    """Prints both tables and writes the plot."""
    dataset: Dataset = DATASETS.get(name)(root)
    scenarios = {setup: _scenario(dataset, task, setup, order) for setup in SETUPS}
    if all(isinstance(found, TissError) for found in scenarios.values()):
        raise next(iter(scenarios.values()))  # type: ignore[misc]
    usable = {setup: found for setup, found in scenarios.items() if isinstance(found, Scenario)}
    counts = count_classes(dataset)
    print(f"{dataset.name} at {dataset.root_path()}\n" if dataset.root_path() else f"{dataset.name}\n")
    print(_class_table(counts, form))
    first = next(iter(usable.values()))
    print(f"\ntask {first.task}\n")
    print(_step_table(usable, form))
    for setup, found in scenarios.items():
        if isinstance(found, TissError):
            print(f"{setup}: {found}")
    if plot:
        images = {setup: [len(ids) for ids in scenario.lists] for setup, scenario in usable.items()}
        plot_counts(counts, first.values, images, f"{dataset.name}, task {first.task}", Path(plot))
        print(f"\nplot: {plot}")
    return 0


def _scenario(dataset: Dataset, task: str | None, setup: str, order: str | None) -> Scenario | TissError:
    """The scenario, or why there is none: disjoint may leave a step without images."""
    try:
        return load_scenario(dataset=dataset, task=task, setup=setup, order=order)
    except TissError as error:
        return error


def _class_table(counts: list[ClassCount], form: str) -> str:
    totals = {split: max(1, sum(row.pixels[split] for row in counts)) for split in ("train", "test")}
    header = ("label", "class", "train images", "train pixels", "%", "test images", "test pixels", "%")
    rows = []
    for row in counts:
        cells = [str(row.label), row.name]
        for split in ("train", "test"):
            share = 100 * row.pixels[split] / totals[split]
            cells += [str(row.images[split]), str(row.pixels[split]), f"{share:.2f}"]
        rows.append(cells)
    return format_table(header, rows, form)


def _step_table(scenarios: dict[str, Scenario], form: str) -> str:
    first = next(iter(scenarios.values()))
    rows = []
    for step in first:
        names = ", ".join(step.new_classes[:6]) + (", …" if step.new > 6 else "")
        images = [str(len(scenario.lists[step.index])) for scenario in scenarios.values()]
        rows.append([str(step.index), str(step.new), names, *images, str(len(step.test))])
    header = ("step", "new", "classes", *(f"{setup} images" for setup in scenarios), "test images")
    return format_table(header, rows, form)
