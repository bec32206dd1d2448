"""A scenario: a data set's classes and images, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from tiss.config import ProtocolConfig
from tiss.data.base import DATASETS, Dataset
from tiss.errors import TissError
from tiss.scenarios.selection import PARTITIONED, SETUPS, held_out, partition, read_lists, select
from tiss.scenarios.split import Protocol, Split, evaluation_table, resolve_protocol, training_table
from tiss.scenarios.task import Groups, OrderLike, TaskLike, parse_task, task_name


@dataclass(frozen=True)
class Step:
    """One step: its new classes, the images to train on, and the test of all classes so far.

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
    setup: str = "overlapped"  # or "disjoint": no image has a class of a later step

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
        return replace(self, joined=True)

    @cached_property
    def _steps(self) -> tuple[Step, ...]:
        return tuple(self._make_step(index) for index in range(len(self)))

    def _make_step(self, index: int) -> Step:
        # channels follow the order in which the task adds the label values
        channel_of = {value: place + 1 for place, value in enumerate(chain(*self.values))}
        groups, lists = self.values, self.lists
        if self.joined:
            groups, lists = (tuple(channel_of),), (tuple(sorted(set().union(*self.lists))),)
        old = sum(len(group) for group in groups[:index]) + 1
        new = len(groups[index])
        return Step(
            index=index,
            old=old,
            new=new,
            old_classes=self.classes[1:old],
            new_classes=self.classes[old : old + new],
            future_classes=self.classes[old + new :],
            train=Split(
                self.dataset,
                "train",
                lists[index],
                training_table({value: channel_of[value] for value in groups[index]}, self.protocol),
            ),
            test=self._make_test({value: c for value, c in channel_of.items() if c < old + new}),
            steps=len(self),
            setup=self.setup,
        )

    def _make_test(self, seen: dict[int, int]) -> Split:
        split = "train" if self.held else "test"
        ids = sorted(self.held) if self.held else self.dataset.ids("test")
        if self.protocol.test_images == "seen":
            present = self.dataset.classes_present(split)
            ids = [id for id in ids if not present.get(id, frozenset()).isdisjoint(seen)]
        unseen = frozenset(range(1, len(self.dataset.classes) + 1)) - seen.keys()
        table = evaluation_table(seen, unseen, self.protocol, self.dataset.background_in_test)
        return Split(self.dataset, split, tuple(ids), table)

    def describe(self) -> str:
        """The steps as a table: classes, training and test images."""
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
    """Loads a data set by name (or takes a data set object) and divides it into steps.

    Args:
        data: a data set's name; a data set object works as well, here or as `dataset`.
        root: its folder.
        task: `a-b` or groups, see `parse_task`; None: the data set's own.
        setup: "overlapped" or "disjoint".
        protocol: "paper", "mib" or "plop", or a `ProtocolConfig` that overrides parts of one.
        order: order of the classes, see `parse_order`.
        lists: a folder with the training ids of each step, which then replace the setup's selection.
        holdout: share of the training ids kept out of every step and scored instead of the test.
        on_error: "stop" at the first pair of files that cannot be read, or "skip" such pairs, which the data
            set then lists in `left_out`.
    """
    if dataset is None:
        if data is None:
            raise TissError("is needed: name a data set, such as shapes or voc", setting="data")
        dataset = DATASETS.get(data)(root=root) if isinstance(data, str) else data
    if on_error == "skip" and hasattr(dataset, "skips_broken"):
        dataset.skips_broken = True
    task = task or getattr(dataset, "default_task", None)
    if not task:
        message = (
            f"is needed: {dataset.name} has no task of its own; give a-b or groups such as 'cat,dog/person'"
        )
        raise TissError(message, setting="task")
    values = parse_task(task, dataset.classes, order)
    count = sum(map(len, values))
    if count > 253:
        raise TissError(f"has {count} classes, but labels have one byte: at most 253 fit", setting="task")
    held = held_out(dataset.ids("train"), holdout)
    chosen = _training_lists(dataset, values, setup, lists)
    kept = tuple(tuple(id for id in ids if id not in held) for ids in chosen)
    names = ("background", *(dataset.classes[value - 1] for group in values for value in group))
    channels = iter(range(1, count + 1))
    for index, ids in enumerate(kept):
        if not ids:
            message = f"leaves step {index} ({setup}) without a training image: change the task or the setup"
            raise TissError(message, setting="task")
    return Scenario(
        dataset=dataset,
        task=task_name(values, dataset.classes),
        setup=setup,
        protocol=resolve_protocol(protocol),
        classes=names,
        groups=tuple(tuple(next(channels) for _ in group) for group in values),
        values=values,
        lists=kept,
        held=held,
    )


def _training_lists(
    dataset: Dataset, values: Groups, setup: str, lists: str | Path | None
) -> Sequence[Sequence[str]]:
    if setup not in SETUPS:
        raise TissError(f"{setup}: choose overlapped or disjoint", setting="setup")
    if lists is not None:
        return read_lists(Path(lists), len(values), dataset.ids("train"))
    present = dataset.classes_present("train")
    if setup == "disjoint" and dataset.name in PARTITIONED:
        return partition(present, values)
    return select(present, values, setup)
