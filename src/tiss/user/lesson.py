"""A lesson: a user's labelled folder, cut into pictures to learn from and pictures to test on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tiss.data.base import BACKGROUND, IGNORE
from tiss.data.classes import BACKGROUND_NAMES, CLASS_FILES, ClassList, find_file
from tiss.data.folder import Folder
from tiss.data.paired import PairedDataset
from tiss.errors import TissError, suggest
from tiss.scenarios.scenario import Step
from tiss.scenarios.selection import id_hash
from tiss.scenarios.split import Split

Present = Mapping[str, frozenset[int]]


class LabelledFolder(Folder):
    """A `folder` data set whose class list may be missing where the command names the classes itself."""

    def __init__(self, root: str, names: Sequence[str] = ()) -> None:
        if names and find_file(Path(root).expanduser(), CLASS_FILES) is None:
            PairedDataset.__init__(self, root)
            self._use(ClassList(tuple(names), True, {}))
        else:
            super().__init__(root)


def open_folder(root: str, names: Sequence[str] = (), flag: str = "--data") -> LabelledFolder:
    """The data set in `root`; without a class list, mask values 1, 2, … are `names` in their order."""
    try:
        return LabelledFolder(root, names)
    except TissError as error:
        raise TissError(str(error).replace("--data.root", flag)) from None


@dataclass(frozen=True)
class Lesson:
    """One step on a user's pictures, and which classes their masks tell about."""

    step: Step
    labelled: frozenset[str]  # classes of the step's model that the folder's class list has

    @property
    def held(self) -> Split:
        """Pictures that are not learnt from, with every known class in its channel."""
        return self.step.test


def make_lesson(
    dataset: LabelledFolder,
    old: Sequence[str],
    new: Sequence[str],
    groups: int,
    share: float = 0.2,
    flag: str = "--data",
) -> Lesson:
    """The step that adds `new` to a model with the classes `old` (background first) learnt in `groups` steps.

    Pictures in a folder test, val, … are the test; without one, `share` of the pictures is kept out by the
    hash of their names. All pictures left are learnt from: one without a new class says where it is not.
    """
    values = {name: dataset.classes.index(name) + 1 for name in new}
    present = dataset.classes_present("train")
    for name, value in values.items():
        if not any(value in found for found in present.values()):
            remedy = "name the others with --classes" if old[1:] else "take it out of classes.txt"
            raise TissError(
                f"{flag}: no mask has a single pixel of {name!r}, which is the value {value} (255 means: ignored); "
                f"label it, or {remedy}"
            )
    if dataset.has_test():
        train, held, split = sorted(present), dataset.ids("test"), "test"
    else:
        train, held = hold_out(present, values.values(), share)
        split = "train"
        if not held:
            name = next(
                name for name, value in values.items() if sum(value in p for p in present.values()) < 2
            )
            raise TissError(
                f"{flag}: only one picture shows {name!r}: label at least two, one of them for the test"
            )
    channels = list(old) + list(new)
    known = {
        dataset.classes.index(name) + 1: channels.index(name) for name in channels if name in dataset.classes
    }
    step = Step(
        index=groups,
        old=len(old),
        new=len(new),
        old_classes=tuple(old[1:]),
        new_classes=tuple(new),
        future_classes=(),
        train=Split(
            dataset, "train", tuple(train), _table({v: channels.index(n) for n, v in values.items()})
        ),
        test=Split(dataset, split, tuple(held), _table(known)),
        steps=groups + 1,
    )
    labelled = {channels[channel] for channel in known.values()}
    if dataset.has_background and labelled >= set(channels[1:]):
        labelled.add(channels[0])  # label 0 is surely no known class only where all of them are labelled
    return Lesson(step, frozenset(labelled))


def hold_out(present: Present, values: Iterable[int], share: float) -> tuple[list[str], list[str]]:
    """Sorted ids to learn from and to keep for the test: `share` of each class's pictures, by their hashes.

    Every class keeps a picture to learn from, and a class with two or more gives one to the test.

    >>> hold_out({"a": frozenset({1}), "b": frozenset({1}), "c": frozenset()}, [1], 0.2)
    (['b', 'c'], ['a'])
    """
    if not 0 < share < 1:
        raise TissError(f"--holdout {share:g}: give a share between 0 and 1, such as 0.2")
    ordered = sorted(present, key=lambda id: (id_hash(id), id))
    groups = [[id for id in ordered if value in present[id]] for value in values]
    held: set[str] = set()
    for members in sorted(groups, key=len):
        held.update(members[: max(1, round(share * len(members)))] if len(members) > 1 else [])
    for members in groups:
        if members and held.issuperset(members):
            held.discard(members[-1])
    others = [id for id in ordered if not any(id in members for members in groups)]
    held.update(others[: round(share * len(others))] if held else [])
    return sorted(set(ordered) - held), sorted(held)


def _table(channels: Mapping[int, int]) -> np.ndarray:
    """uint8[256]: label value → channel; values not named are background, 255 stays ignored."""
    table = np.full(256, BACKGROUND, np.uint8)
    table[IGNORE] = IGNORE
    for value, channel in channels.items():
        table[value] = channel
    return table


def choose_classes(
    text: str | None, dataset: Sequence[str], known: Sequence[str], model: str
) -> tuple[str, ...]:
    """The new classes' names from the flag, or all that the folder lists and the model does not know."""
    if text is None:
        names = [name for name in dataset if name not in known]
        if not names:
            raise TissError(
                f"--classes: {model} knows every class of the folder's list already: name a new one there"
            )
        return tuple(names)
    names = split_names(text)
    for name in names:
        if name in known:
            raise TissError(
                f"--classes: {model} has a class {name!r} already, and extend only adds classes: name a new one; "
                "an old one is learnt better by tiss train on all the labels there are"
            )
        if name not in dataset:
            raise TissError(
                f"--classes: {suggest(name, dataset, 'class')} (the folder's class list has the names)"
            )
    return tuple(names)


def split_names(text: str) -> list[str]:
    """'forklift, pallet' as names; empty, repeated and reserved ones are errors."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name:
            raise TissError("--classes: an empty name: write names with commas, as in 'forklift,pallet'")
        if name.lower() in BACKGROUND_NAMES:
            raise TissError(f"--classes: {name!r} is the background's name: every model has it already")
        if names.count(name) > 1:
            raise TissError(f"--classes: {name!r} is named twice")
    return names
