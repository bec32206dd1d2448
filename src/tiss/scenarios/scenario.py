"""A scenario: a data set's classes and images, handed out step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tiss.config import ProtocolConfig
from tiss.data.base import DATASETS, Dataset
from tiss.errors import TissError
from tiss.scenarios.lists import read_lists
from tiss.scenarios.protocol import Protocol, resolve_protocol
from tiss.scenarios.selection import PARTITIONED, SETUPS, held_out, partition, select
from tiss.scenarios.split import Split, evaluation_table, training_table
from tiss.scenarios.task import Groups, OrderLike, TaskLike, parse_task, task_name


@dataclass(frozen=True)
class Step:
    """One step: the classes that come now, the images to learn them from, and the test so far.

    `old` and `new` count channels; `old` counts the background, so it is 1 at step 0. The names in
    `old_classes`, `new_classes` and `future_classes` are foreground classes only.
    """

    index: int
    old: int
    new: int
    old_classes: tuple[str, ...]
    new_classes: tuple[str, ...]
    future_classes: tuple[str, ...]
    train: Split
    test: Split
    steps: int = 1  # of the whole scenario: some methods' weights depend on it

    @property
    def seen(self) -> int:
        """Channels after this step, the background counted."""
        return self.old + self.new

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of all channels after this step."""
        return ("background", *self.old_classes, *self.new_classes)

    def __str__(self) -> str:
        names = ", ".join(self.new_classes[:6]) + (", …" if self.new > 6 else "")
        return f"step {self.index}: {self.new} new ({names}), {len(self.train)} images"


@dataclass(frozen=True)
class Scenario:
    """The steps of one task on one data set. Iterate over it, or index it.

    `classes` are the names of all channels, "background" first; `groups` the channels that each step adds.
    After `joint()` there is one step with all of them, and `groups` stay those of the task.
    """

    dataset: Dataset
    task: str
    setup: str
    protocol: Protocol
    classes: tuple[str, ...]
    groups: Groups
    values: Groups  # the data set's label values, group by group, in the order of the channels
    lists: tuple[tuple[str, ...], ...]  # training ids of each group
    held: frozenset[str] = frozenset()  # training ids kept out of every step and scored instead of the test
    joined: bool = False
    shared: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return 1 if self.joined else len(self.groups)

    def __getitem__(self, index: int) -> Step:
        if not -len(self) <= index < len(self):
            raise IndexError(f"step {index} of a scenario with {len(self)} steps")
        return self._steps[index % len(self)]

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    @property
    def has_background(self) -> bool:
        """Whether channel 0 is a real class and may enter a mean."""
        return self.dataset.has_background

    def joint(self) -> Scenario:
        """The same images with every class in one step: the upper bound `offline`."""
        return replace(self, joined=True, shared=self.shared)

    @cached_property
    def _steps(self) -> tuple[Step, ...]:
        return tuple(self._make_step(index) for index in range(len(self)))

    def _make_step(self, index: int) -> Step:
        groups = (
            (tuple(channel for group in self.groups for channel in group),) if self.joined else self.groups
        )
        lists = (tuple(sorted(set().union(*self.lists))),) if self.joined else self.lists
        value_of = dict(
            zip(
                (channel for group in self.groups for channel in group),
                (value for group in self.values for value in group),
                strict=True,
            )
        )
        current = {value_of[channel]: channel for channel in groups[index]}
        old = sum(len(group) for group in groups[:index]) + 1
        new = len(current)
        return Step(
            index=index,
            old=old,
            new=new,
            old_classes=self.classes[1:old],
            new_classes=self.classes[old : old + new],
            future_classes=self.classes[old + new :],
            train=Split(
                self.dataset, "train", lists[index], training_table(current, self.protocol), self.shared
            ),
            test=self._make_test(
                {value: channel for channel, value in value_of.items() if channel < old + new}
            ),
            steps=len(self),
        )

    def _make_test(self, seen: dict[int, int]) -> Split:
        split = "train" if self.held else "test"
        ids = sorted(self.held) if self.held else self.dataset.ids("test")
        if self.protocol.test_images == "seen":
            present = self.dataset.classes_present(split)
            ids = [id for id in ids if not present.get(id, frozenset()).isdisjoint(seen)]
        unseen = frozenset(range(1, len(self.dataset.classes) + 1)) - seen.keys()
        table = evaluation_table(seen, unseen, self.protocol, self.dataset.background_in_test)
        return Split(self.dataset, split, tuple(ids), table, self.shared)

    def describe(self) -> str:
        """The steps as a table for people: classes, training and test images."""
        title = f"{self.dataset.name} {self.task} {self.setup}, protocol {self.protocol.name}"
        if self.joined:
            title += ", all classes at once"
        if self.held:
            title += f", {len(self.held)} training images held out and scored instead of the test"
        rows = [("step", "new classes", "training images", "test images")]
        for step in self:
            names = ", ".join(step.new_classes[:4]) + (", …" if step.new > 4 else "")
            rows.append((str(step.index), f"{step.new}: {names}", str(len(step.train)), str(len(step.test))))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            f"{step:>{widths[0]}}  {names:<{widths[1]}}  {train:>{widths[2]}}  {test:>{widths[3]}}"
            for step, names, train, test in rows
        ]
        return "\n".join([title, *lines])

    def __str__(self) -> str:
        return self.describe()


def load_scenario(
    data: str | Dataset | None = None,
    *,
    root: str | Path | None = None,
    task: TaskLike | None = None,
    setup: str = "overlapped",
    protocol: str | ProtocolConfig | Protocol = "paper",
    order: OrderLike | None = None,
    lists: str | Path | None = None,
    holdout: float = 0.0,
    dataset: Dataset | None = None,
    on_error: str = "stop",
) -> Scenario:
    """Loads a data set by name (or takes the object given) and lays out its steps.

    Args:
        data: a data set's name; a data set object is taken as well, here or as `dataset`.
        root: the folder that holds it.
        task: `a-b` or groups, see `parse_task`; None: the data set's own.
        setup: "overlapped" or "disjoint".
        protocol: "paper", "mib" or "plop", or a `ProtocolConfig` that overrides parts of one.
        order: order of the classes, see `parse_order`.
        lists: a folder with the training ids of each step, which then replace the setup's selection.
        holdout: share of the training ids kept out of every step and scored instead of the test.
        on_error: "stop" at the first pair of files that cannot be read, or "skip" such pairs; the data set
            then tells them in `left_out`.
    """
    dataset = _find_dataset(data, root, dataset)
    if on_error == "skip" and hasattr(dataset, "skips_broken"):
        dataset.skips_broken = True
    values = parse_task(task or _default_task(dataset), dataset.classes, order)
    if sum(map(len, values)) > 253:
        raise TissError(
            f"--task: {sum(map(len, values))} classes: labels have one byte, at most 253 classes fit"
        )
    held = held_out(dataset.ids("train"), holdout)
    chosen = _training_lists(dataset, values, setup, lists)
    kept = tuple(tuple(id for id in ids if id not in held) for ids in chosen)
    names = ("background", *(dataset.classes[value - 1] for group in values for value in group))
    for index, ids in enumerate(kept):
        if not ids:
            raise TissError(
                f"--task: step {index} ({setup}) has no training image: change the task or the setup"
            )
    return Scenario(
        dataset=dataset,
        task=task_name(values, dataset.classes),
        setup=setup,
        protocol=resolve_protocol(protocol),
        classes=names,
        groups=_channels(values),
        values=values,
        lists=kept,
        held=held,
    )


def _find_dataset(data: str | Dataset | None, root: str | Path | None, dataset: Dataset | None) -> Dataset:
    if dataset is not None:
        return dataset
    if data is None:
        raise TissError("--data: name a data set, such as shapes or voc")
    if not isinstance(data, str):
        return data
    made: Dataset = DATASETS.get(data)(root=root)
    return made


def _default_task(dataset: Dataset) -> str:
    task: str = getattr(dataset, "default_task", None) or ""
    if not task:
        raise TissError(
            f"--task: {dataset.name} has no task of its own: give a-b or groups such as 'cat,dog/person'"
        )
    return task


def _training_lists(
    dataset: Dataset, values: Groups, setup: str, lists: str | Path | None
) -> Sequence[Sequence[str]]:
    if setup not in SETUPS:
        raise TissError(f"--setup {setup}: choose overlapped or disjoint")
    if lists is not None:
        return read_lists(Path(lists), len(values), dataset.ids("train"))
    present = dataset.classes_present("train")
    if setup == "disjoint" and dataset.name in PARTITIONED:
        return partition(present, values)
    return select(present, values, setup)


def _channels(values: Groups) -> Groups:
    groups, start = [], 1
    for group in values:
        groups.append(tuple(range(start, start + len(group))))
        start += len(group)
    return tuple(groups)
