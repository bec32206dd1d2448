"""One step on a user's own data: a labelled folder, cut into images to train on and images held out."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tiss.data.base import BACKGROUND, IGNORE
from tiss.data.classes import BACKGROUND_NAMES, CLASS_FILES, ClassList, find_file
from tiss.data.folder import Folder
from tiss.errors import TissError, suggest
from tiss.scenarios import Split, Step, id_hash

SAMPLE = 32  # masks that tell how wide the classes' parts are, about


class LabelledFolder(Folder):
    """A `folder` data set whose class list may be missing where the command names the classes itself."""

    def __init__(self, root: str, names: Sequence[str] = ()) -> None:
        listed = not names or find_file(Path(root).expanduser(), CLASS_FILES)
        super().__init__(root, None if listed else ClassList(tuple(names), True, {}))

    def table(self, channels: Sequence[str]) -> tuple[np.ndarray, frozenset[str]]:
        """uint8[256], label value → channel of the class, and the classes that the labels tell about.

        Values of other classes are background. Label 0 is certainly none of `channels` only where all are labelled.
        """
        table = np.full(256, BACKGROUND, np.uint8)
        table[IGNORE] = IGNORE
        known = [name for name in channels if name in self.classes]
        for name in known:
            table[self.classes.index(name) + 1] = channels.index(name)
        whole = self.has_background and set(known) >= set(channels[1:])
        return table, frozenset([*known, channels[0]] if whole else known)


def make_folder_step(
    dataset: LabelledFolder, old: Sequence[str], names: Sequence[str], groups: int, share: float = 0.2
) -> Step:
    """The step that teaches `names` to a model with the classes `old` (background first) trained in `groups` steps.

    Names that are in `old` are shown again, the others are new.
    Images in a folder test, val, … are held out; without one, `share` of the images is, by the hash of their
    names. All others are trained on: an image without a new class says where it is not.
    """
    values = {name: dataset.classes.index(name) + 1 for name in names}
    new = [name for name in names if name not in old]
    present = dataset.classes_present("train")
    shown = {name: sum(value in found for found in present.values()) for name, value in values.items()}
    root = dataset.root_path()
    for name, value in values.items():
        if not shown[name]:
            remedy = "name the others in classes" if old[1:] else "remove it from classes.txt"
            fault = f"{root}: no mask has a pixel of {name!r}, the value {value} (255 means: ignored)"
            raise TissError(f"{fault}; label it, or {remedy}", setting="data.root")
    split = "test" if dataset.has_test() else "train"
    if dataset.has_test():
        train, held = sorted(present), dataset.ids("test")
    else:
        train, held = hold_out(present, values.values(), share)
    if not held:
        name = min(shown, key=lambda name: shown[name])
        raise TissError(
            f"{root}: only one image shows {name!r}: label one more to hold out", setting="data.root"
        )
    known, _ = dataset.table([*old, *new])
    channels = [[*old, *new].index(name) for name in names]
    current = np.where(np.isin(known, [*channels, IGNORE]), known, BACKGROUND).astype(np.uint8)
    return Step(
        index=groups,
        old=len(old),
        new=len(new),
        old_classes=tuple(old[1:]),
        new_classes=tuple(new),
        future_classes=(),
        train=Split(dataset, "train", tuple(train), current),
        test=Split(dataset, split, tuple(held), known),
        steps=groups + 1,
    )


def thin_classes(step: Step, size: int, stride: int) -> list[str]:
    """Classes of which most parts are narrower than half of `stride` pixels in images whose shorter side is `size`.

    A part of width w has w / 2 pixels of area for each pixel of its boundary.
    """
    area, edges = np.zeros(256), np.zeros(256)
    for index in range(0, len(step.train), max(1, len(step.train) // SAMPLE)):
        label = step.train.read(index).label.numpy()
        area += np.bincount(label.ravel(), minlength=256) * size / min(label.shape)
        for one, two in ((label[1:], label[:-1]), (label[:, 1:], label[:, :-1])):
            for side in (one, two):
                edges += np.bincount(side[one != two], minlength=256)
    return [step.classes[c] for c in step.train.labelled if 0 < 4 * area[c] < stride * edges[c]]


def hold_out(
    present: Mapping[str, frozenset[int]], values: Iterable[int], share: float
) -> tuple[list[str], list[str]]:
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


def choose_classes(
    text: str | None, listed: Sequence[str], known: Sequence[str], model: str, again: bool = False
) -> tuple[str, ...]:
    """The classes' names as given, or all that the folder lists and the model does not know.

    `again` allows classes that the model knows: it learns more of them.
    """
    names = [name for name in listed if name not in known] if text is None else split_names(text)
    fault = "" if names else f"{model} knows every class of the folder's list already: name a new one there"
    for name in names:
        if name in known and not again:
            fault = (
                f"{model} has a class {name!r} already, and its method only adds classes: name a new one; more "
                "images of an old class need a model of analytic, or tiss train on all the labels there are"
            )
        elif name not in listed:
            fault = f"{suggest(name, listed, 'class')} (the folder's class list has the names)"
    if fault:
        raise TissError(fault, setting="classes")
    return tuple(names)


def split_names(text: str) -> list[str]:
    """'forklift, pallet' as names; empty, repeated and reserved ones are errors."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        for wrong, fault in (
            (not name, "has an empty name: separate names with commas, as in 'forklift,pallet'"),
            (name.lower() in BACKGROUND_NAMES, f"{name!r} is the background: every model has it already"),
            (names.count(name) > 1, f"{name!r} is named twice"),
        ):
            if wrong:
                raise TissError(fault, setting="classes")
    return names
