"""A scenario: a data set's classes and images, step by step, and how label values become channels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from tiss.config import ProtocolConfig
from tiss.data.base import BACKGROUND, DATASETS, IGNORE, Dataset, Split
from tiss.errors import TissError, listed, suggest
from tiss.scenarios.task import (
    PARTITIONED,
    SETUPS,
    Exemplars,
    Groups,
    OrderLike,
    TaskLike,
    check_lists,
    draw_memory,
    first_by_hash,
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
    setup: str = "overlapped"  # in "disjoint" and "sequential" no image has a class of a later step

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
        new = f"{self.new} new ({listed(self.new_classes)})" if self.new else "no new class"
        return f"step {self.index}: {new}, {len(self.train)} images"


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
    limit: int | None = None  # of a trial run: at most this many test images
    joined: bool = False
    domains: tuple[tuple[str, ...], ...] = ()  # in the setup of that name: where each step's images come from
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

    def added(self, step: Step) -> tuple[str, ...]:
        """What a step brings: new classes, or the domains that its images come from."""
        if not self.domains:
            return step.new_classes
        return tuple(chain(*self.domains)) if self.joined else self.domains[step.index]

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
            # the classes that each step's images are labelled with
            shown = (groups[0],) * len(groups) if self.domains else groups
            kept = draw_memory(lists, shown, present, self.memory, self.seed)
        steps: list[Step] = []
        labelled: list[tuple[int, ...]] = []  # the label values that each step's images are labelled with
        for group, ids, exemplars in zip(groups, lists, kept, strict=True):
            index = len(steps)
            old = steps[-1].seen if steps else 1
            seen = old + len(group)
            known = {value: c for value, c in channel_of.items() if c < seen}
            labelled.append(tuple(known) if self.setup in ("sequential", "domains") else group)
            train, test = self._training(channel_of, labelled, ids, exemplars), self._test(known, index)
            names = self.classes[1:old], self.classes[old:seen], self.classes[seen:]
            steps.append(Step(index, old, seen - old, *names, train, test, len(self), self.setup))
        return tuple(steps)

    def _training(
        self,
        channel_of: Mapping[int, int],
        labelled: Sequence[tuple[int, ...]],
        ids: tuple[str, ...],
        exemplars: Exemplars,
    ) -> Split:
        """The label values of the last step in `labelled` keep their channel; all others become 0.

        Images kept in memory keep those of the steps that they come from.
        """

        def table(values: Iterable[int]) -> np.ndarray:
            made = np.full(256, BACKGROUND, np.uint8)
            made[list(values)] = [channel_of[value] for value in values]
            made[IGNORE] = BECOMES[str(self.protocol.border)]
            return made

        own, now = frozenset(ids), len(labelled) - 1
        tables = {
            id: table({*chain(*(labelled[step] for step in (*steps, *([now] if id in own else ()))))})
            for id, steps in exemplars.items()
        }
        more = tuple(id for id in exemplars if id not in own)
        every = frozenset().union(*self.lists)
        return Split(self.dataset, "train", ids + more, table(labelled[now]), tables, every)

    def _test(self, seen: dict[int, int], step: int) -> Split:
        """All classes seen so far keep their channel; those not seen yet become what the protocol says."""
        split = "train" if self.held else "test"
        ids = sorted(self.held) if self.held else self.dataset.readable("test")
        every = frozenset(() if self.limit else ids)
        if self.protocol.test_images == "seen":
            present = self.dataset.classes_present(split)
            ids = [id for id in ids if not present.get(id, frozenset()).isdisjoint(seen)]
        if self.domains and not self.joined:  # of the domains so far
            known = {*chain(*self.domains[: step + 1])}
            ids = [id for id in ids if self.dataset.domain(id) in known]
        if self.limit is not None and self.limit < len(ids):
            ids = sorted(first_by_hash(ids, self.limit))
        other = self.protocol.other
        table = np.full(256, IGNORE, np.uint8)
        table[BACKGROUND] = self.dataset.background_in_test if other is None else BECOMES[other]
        table[1 : len(self.dataset.classes) + 1] = BECOMES[str(self.protocol.unseen)]
        table[list(seen)] = list(seen.values())
        return Split(self.dataset, split, tuple(ids), table, every=every)

    def __str__(self) -> str:
        """The steps as a table: classes, training and test images."""
        joined = ", all classes at once" if self.joined else ""
        held = (
            f", {len(self.held)} training images held out and scored instead of the test" if self.held else ""
        )
        few = f", tested on {self.limit} images only" if self.limit else ""
        memory = f", memory of {self.memory} images" if self.memory else ""
        title = f"{self.dataset.name} {self.task} {self.setup}, protocol {self.protocol.name}"
        title += f"{joined}{held}{few}{memory}"
        rows = [("step", "domains" if self.domains else "new classes", "training images", "test images")]
        for step in self:
            added = self.added(step)
            names = f"{len(added)}: {listed(added, 4)}"
            rows.append((str(step.index), names, str(len(step.train)), str(len(step.test))))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        sides = [f"{side}{width}" for side, width in zip("><>>", widths, strict=True)]
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
    eval_images: int | None = None,
    dataset: Dataset | None = None,
    on_error: str = "stop",
) -> Scenario:
    """Loads a data set by name (or takes a data set object) and divides it into steps.

    Args:
        data: a data set's name; a data set object works as well, here or as `dataset`.
        root: its folder.
        task: `a-b` or groups, see `parse_task`; None: the data set's own.
        setup: "overlapped", "disjoint", "sequential" (disjoint, with old classes labelled too) or "partitioned" (each
            image in one step only).
        protocol: "paper", "mib" or "plop", or a `ProtocolConfig` that overrides parts of one.
        order: order of the classes, see `parse_order`.
        lists: a folder with the training ids of each step, which then replace the setup's selection.
        holdout: share of the training ids kept out of every step and scored instead of the test.
        eval_images: for trial runs, test on this many images only.
        on_error: "stop" at the first pair of files that cannot be read, or "skip" all such pairs, which the data
            set then lists in `left_out`. Every image is decoded once to find them.
    """
    if dataset is None:
        if data is None:
            raise TissError("is needed: name a data set, such as shapes or voc", setting="data")
        dataset = DATASETS.get(data)(root=root) if isinstance(data, str) else data
    if on_error == "skip":
        dataset.skips_broken = True
    if not (task := task or dataset.default_task):
        message = f"{dataset.name} has no task of its own; give a-b or groups such as 'cat,dog/person'"
        raise TissError(f"is needed: {message}", setting="task")
    if (setup == "domains") != bool(dataset.domains):
        remedy = "is divided by domain: take domains" if dataset.domains else "has no domains: take another"
        raise TissError(f"{setup}: {dataset.name} {remedy}", setting="setup")
    if dataset.domains and lists is not None:
        raise TissError(
            "does not go with the setup domains, which divides the images itself", setting="lists"
        )
    named = dataset.domains or dataset.classes
    places = values = parse_task(task, named, order)
    if dataset.domains:  # every class is known from the start
        values = (tuple(range(1, len(dataset.classes) + 1)), *[()] * (len(places) - 1))
    domains = tuple(tuple(named[value - 1] for value in group) for group in places if dataset.domains)
    count = sum(map(len, values))
    if count > 253:
        raise TissError(f"has {count} classes, but labels have one byte: at most 253 fit", setting="task")
    usable = dataset.readable("train")
    held = held_out(usable, holdout)
    if dataset.skips_broken and not held:
        dataset.readable("test")  # so that `left_out` is complete from now on
    if setup not in SETUPS:
        raise TissError(f"{setup}: choose one of {', '.join(SETUPS)}", setting="setup")
    if eval_images is not None and eval_images < 1:
        raise TissError(f"{eval_images}: must be at least 1", setting="eval.images")
    present = dataset.classes_present("train")
    if domains:
        chosen = [[id for id in usable if dataset.domain(id) in group] for group in domains]
    elif lists is not None:
        chosen = read_lists(Path(lists), len(values), dataset.ids("train"))
        check_lists(Path(lists), chosen, present, values)
    elif setup == "partitioned" or (setup == "disjoint" and dataset.name in PARTITIONED):
        chosen = partition(present, values)
    else:
        chosen = select(present, values, setup)
    kept = [tuple(sorted({*ids}.intersection(usable) - held)) for ids in chosen]
    if () in kept:
        where = f"step {kept.index(())} ({setup})"
        raise TissError(
            f"leaves {where} without a training image: change the task or the setup", setting="task"
        )
    channels = iter(range(1, count + 1))
    return Scenario(
        dataset=dataset,
        task=task_name(places, named),
        setup=setup,
        protocol=resolve_protocol(protocol),
        classes=("background", *(dataset.classes[value - 1] for group in values for value in group)),
        groups=tuple(tuple(next(channels) for _ in group) for group in values),
        values=values,
        lists=tuple(kept),
        held=held,
        limit=eval_images,
        domains=domains,
    )
