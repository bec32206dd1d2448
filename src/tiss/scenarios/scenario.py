"""A scenario: a data set's classes and images, step by step, and how label values become channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tiss.config import ProtocolConfig
from tiss.data.base import BACKGROUND, DATASETS, IGNORE, Dataset, Sample, read_checked
from tiss.errors import TissError, suggest
from tiss.scenarios.memory import Exemplars, draw_memory
from tiss.scenarios.task import (
    PARTITIONED,
    SETUPS,
    Groups,
    OrderLike,
    TaskLike,
    held_out,
    parse_task,
    partition,
    read_lists,
    select,
    task_name,
)

PROTOCOLS = {
    "mib": ProtocolConfig("mib", border="background", unseen="ignore", test_images="seen"),
    # keeps ADE20K's "other" as class 0
    "plop": ProtocolConfig(
        "plop", border="ignore", unseen="background", test_images="seen", other="background"
    ),
    "paper": ProtocolConfig("paper", border="ignore", unseen="background", test_images="all"),
}
BECOMES = {"background": BACKGROUND, "ignore": IGNORE}


def resolve_protocol(config: ProtocolConfig | str) -> ProtocolConfig:
    """The named variant with the parts that `config` overrides; `other` None leaves label 0 to the data set.

    >>> resolve_protocol(ProtocolConfig("mib", unseen="background")).unseen
    'background'
    """
    parts: dict[str, Any] = {"name": config} if isinstance(config, str) else vars(config)
    if parts["name"] not in PROTOCOLS:
        raise TissError(suggest(parts["name"], PROTOCOLS, "protocol"))
    return replace(
        PROTOCOLS[parts["name"]], **{name: part for name, part in parts.items() if part is not None}
    )


@dataclass(frozen=True)
class Split:
    """Images of one step, for training or for the test.

    `table` is uint8[256]: label value in the file → channel. `tables` has those of images kept in memory, by id:
    they show the classes of the steps that the images come from.
    """

    dataset: Dataset
    split: str  # the data set's own split: "train" or "test"
    ids: tuple[str, ...]
    table: np.ndarray
    tables: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, index: int) -> Sample:
        """Sample `index` with its label in channels."""
        sample = read_checked(self.dataset, self.split, self.ids[index])
        table = self.tables.get(sample.id, self.table)
        return Sample(sample.image, torch.from_numpy(table)[sample.label.long()], sample.id)


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
    def memory(self) -> tuple[str, ...]:
        """The ids of earlier steps' images that this one is shown again."""
        return tuple(self.train.tables)

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
    protocol: ProtocolConfig
    classes: tuple[str, ...]
    groups: Groups
    values: Groups  # the data set's label values, group by group, in the order of the channels
    lists: tuple[tuple[str, ...], ...]  # training ids of each group
    held: frozenset[str] = frozenset()  # training ids kept out of every step and scored instead of the test
    joined: bool = False
    memory: int = 0  # training images of earlier steps that later ones show again
    seed: int = 0  # of their choice

    def __len__(self) -> int:
        return 1 if self.joined else len(self.groups)

    def __getitem__(self, index: int) -> Step:
        if not -len(self) <= index < len(self):
            raise IndexError(f"step {index} of a scenario with {len(self)} steps")
        return self._steps[index % len(self)]

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    def joint(self) -> Scenario:
        """The same images with every class in one step: the upper bound `offline`."""
        return replace(self, joined=True)

    def with_memory(self, images: int, seed: int = 0) -> Scenario:
        """The same steps, each later one with `images` of the steps before, in all; see `draw_memory`."""
        if images < 0:
            raise TissError(f"{images}: give the number of images to keep, or 0 for none", setting="memory")
        return replace(self, memory=images, seed=seed)

    @cached_property
    def _steps(self) -> tuple[Step, ...]:
        # channels follow the order in which the task adds the label values
        channel_of = {value: channel for channel, value in enumerate(chain(*self.values), 1)}
        groups, lists = self.values, self.lists
        if self.joined:
            groups, lists = (tuple(channel_of),), (tuple(sorted(set().union(*self.lists))),)
        kept: list[Exemplars] = [{}] * len(groups)
        if self.memory:
            present = self.dataset.classes_present("train")
            kept = draw_memory(lists, groups, present, self.memory, self.seed)
        steps: list[Step] = []
        for group, ids, exemplars in zip(groups, lists, kept, strict=True):
            old = steps[-1].seen if steps else 1
            seen = old + len(group)
            step = Step(
                index=len(steps),
                old=old,
                new=len(group),
                old_classes=self.classes[1:old],
                new_classes=self.classes[old:seen],
                future_classes=self.classes[seen:],
                train=self._training(channel_of, len(steps), ids, exemplars),
                test=self._test({value: c for value, c in channel_of.items() if c < seen}),
                steps=len(self),
                setup=self.setup,
            )
            steps.append(step)
        return tuple(steps)

    def _training(
        self, channel_of: Mapping[int, int], step: int, ids: tuple[str, ...], exemplars: Exemplars
    ) -> Split:
        """Current classes (label value → channel) keep their channel; all others, old and future, become 0.

        So it is for the images kept in memory, with the classes of the steps that they come from.
        """

        def table(*steps: int) -> np.ndarray:
            values = list(chain(*(groups[one] for one in steps)))
            made = np.full(256, BACKGROUND, np.uint8)
            made[values] = [channel_of[value] for value in values]
            made[IGNORE] = BECOMES[str(self.protocol.border)]
            return made

        groups = (tuple(channel_of),) if self.joined else self.values
        own = frozenset(ids)
        tables = {id: table(*known, *([step] if id in own else [])) for id, known in exemplars.items()}
        more = tuple(id for id in exemplars if id not in own)
        return Split(self.dataset, "train", ids + more, table(step), tables)

    def _test(self, seen: dict[int, int]) -> Split:
        """All classes seen so far keep their channel; those not seen yet become what the protocol says."""
        split = "train" if self.held else "test"
        ids = sorted(self.held) if self.held else self.dataset.ids("test")
        if self.protocol.test_images == "seen":
            present = self.dataset.classes_present(split)
            ids = [id for id in ids if not present.get(id, frozenset()).isdisjoint(seen)]
        other = self.protocol.other
        table = np.full(256, IGNORE, np.uint8)
        table[BACKGROUND] = self.dataset.background_in_test if other is None else BECOMES[other]
        table[1 : len(self.dataset.classes) + 1] = BECOMES[str(self.protocol.unseen)]
        table[list(seen)] = list(seen.values())
        return Split(self.dataset, split, tuple(ids), table)

    def __str__(self) -> str:
        """The steps as a table: classes, training and test images."""
        title = f"{self.dataset.name} {self.task} {self.setup}, protocol {self.protocol.name}"
        if self.joined:
            title += ", all classes at once"
        if self.held:
            title += f", {len(self.held)} training images held out and scored instead of the test"
        if self.memory:
            title += f", memory of {self.memory} images"
        rows = [("step", "new classes", "training images", "test images")]
        for step in self:
            names = ", ".join(step.new_classes[:4]) + (", …" if step.new > 4 else "")
            rows.append((str(step.index), f"{step.new}: {names}", str(len(step.train)), str(len(step.test))))
        sides = [
            f"{side}{max(map(len, column))}"
            for side, column in zip("><>>", zip(*rows, strict=True), strict=True)
        ]
        lines = ["  ".join(map(format, row, sides)) for row in rows]
        return "\n".join([title, *lines])


def load_scenario(
    data: str | Dataset | None = None,
    *,
    root: str | Path | None = None,
    task: TaskLike | None = None,
    setup: str = "overlapped",
    protocol: str | ProtocolConfig = "paper",
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
        message = f"{dataset.name} has no task of its own; give a-b or groups such as 'cat,dog/person'"
        raise TissError(f"is needed: {message}", setting="task")
    values = parse_task(task, dataset.classes, order)
    count = sum(map(len, values))
    if count > 253:
        raise TissError(f"has {count} classes, but labels have one byte: at most 253 fit", setting="task")
    held = held_out(dataset.ids("train"), holdout)
    if setup not in SETUPS:
        raise TissError(f"{setup}: choose overlapped or disjoint", setting="setup")
    if lists is not None:
        chosen = read_lists(Path(lists), len(values), dataset.ids("train"))
    else:
        present = dataset.classes_present("train")
        parted = setup == "disjoint" and dataset.name in PARTITIONED
        chosen = partition(present, values) if parted else select(present, values, setup)
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
