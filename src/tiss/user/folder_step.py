"""One step on a user's own data: a labelled folder, cut into images to train on and images held out."""

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


@dataclass(frozen=True)
class FolderStep:
    """One step on a labelled folder, and the classes that its masks tell about."""

    step: Step
    labelled: frozenset[str]  # classes of the step's model that the folder's class list has

    @property
    def held(self) -> Split:
        """Images that are not trained on, with every known class in its channel."""
        return self.step.test


def make_folder_step(
    dataset: LabelledFolder, old: Sequence[str], new: Sequence[str], groups: int, share: float = 0.2
) -> FolderStep:
    """The step that adds `new` to a model with the classes `old` (background first) trained in `groups` steps.

    Images in a folder test, val, … are held out; without one, `share` of the images is, by the hash of their
    names. All others are trained on: an image without a new class says where it is not.
    """
    values = {name: dataset.classes.index(name) + 1 for name in new}
    present = dataset.classes_present("train")
    for name, value in values.items():
        if not any(value in found for found in present.values()):
            remedy = "name the others in classes" if old[1:] else "remove it from classes.txt"
            raise TissError(
                f"{dataset.root_path()}: no mask has a pixel of {name!r}, which is the value {value} "
                f"(255 means: ignored); label it, or {remedy}",
                setting="data.root",
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
                f"{dataset.root_path()}: only one image shows {name!r}: label at least two, one of them is held out",
                setting="data.root",
            )
    channels = list(old) + list(new)
    known = {
        dataset.classes.index(name) + 1: channels.index(name) for name in channels if name in dataset.classes
    }
    current = {value: channels.index(name) for name, value in values.items()}
    step = Step(
        index=groups,
        old=len(old),
        new=len(new),
        old_classes=tuple(old[1:]),
        new_classes=tuple(new),
        future_classes=(),
        train=Split(dataset, "train", tuple(train), _table(current)),
        test=Split(dataset, split, tuple(held), _table(known)),
        steps=groups + 1,
    )
    labelled = {channels[channel] for channel in known.values()}
    if dataset.has_background and labelled >= set(channels[1:]):
        labelled.add(channels[0])  # label 0 is certainly no known class only where all of them are labelled
    return FolderStep(step, frozenset(labelled))


def hold_out(present: Present, values: Iterable[int], share: float) -> tuple[list[str], list[str]]:
    """Sorted ids to train on and to hold out: `share` of the images of each class, by the hashes of their ids.

    Every class keeps an image to train on, and a class with two or more has one held out.

    >>> hold_out({"a": frozenset({1}), "b": frozenset({1}), "c": frozenset()}, [1], 0.2)
    (['b', 'c'], ['a'])
    """
    if not 0 < share < 1:
        raise TissError(f"{share:g}: must be a share between 0 and 1, such as 0.2", setting="holdout")
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
    """The new classes' names as given, or all that the folder lists and the model does not know."""
    names = [name for name in dataset if name not in known] if text is None else split_names(text)
    if not names:
        raise TissError(
            f"{model} knows every class of the folder's list already: name a new one there", setting="classes"
        )
    for name in names:
        if name in known:
            raise TissError(
                f"{model} has a class {name!r} already, and extend only adds classes: name a new one; to improve "
                "an old class, use tiss train on all the labels there are",
                setting="classes",
            )
        if name not in dataset:
            raise TissError(
                f"{suggest(name, dataset, 'class')} (the folder's class list has the names)",
                setting="classes",
            )
    return tuple(names)


def split_names(text: str) -> list[str]:
    """'forklift, pallet' as names; empty, repeated and reserved ones are errors."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name:
            raise TissError(
                "has an empty name: separate names with commas, as in 'forklift,pallet'", setting="classes"
            )
        if name.lower() in BACKGROUND_NAMES:
            raise TissError(
                f"{name!r} is the background's name: every model has it already", setting="classes"
            )
        if names.count(name) > 1:
            raise TissError(f"{name!r} is named twice", setting="classes")
    return names
