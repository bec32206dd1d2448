"""Which images a step may see: by setup, from published lists, and which are kept out of every step."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tiss.errors import TissError
from tiss.files import read_text
from tiss.scenarios.task import Groups

Present = Mapping[str, frozenset[int]]  # id → label values in its mask

SETUPS = ("overlapped", "disjoint")
PARTITIONED = ("ade20k",)  # nearly every image holds a future class there: disjoint means a partition instead
LEAST = 50  # images that a class gets in its own step, where the data has them


def select(present: Present, groups: Groups, setup: str) -> list[list[str]]:
    """The sorted ids of each step's training images.

    Overlapped: images with at least one pixel of a current class. Disjoint: those with no class of a later
    step as well, so that no image is in two steps.

    >>> select({"a": frozenset({1}), "b": frozenset({1, 2})}, ((1,), (2,)), "disjoint")
    [['a'], ['b']]
    """
    lists = []
    for index, group in enumerate(groups):
        current = frozenset(group)
        future = frozenset(value for later in groups[index + 1 :] for value in later)
        forbidden = future if setup == "disjoint" else frozenset[int]()
        lists.append([id for id in sorted(present) if present[id] & current and not present[id] & forbidden])
    return lists


def partition(present: Present, groups: Groups, least: int = LEAST) -> list[list[str]]:
    """Each image in exactly one step, one of whose classes it holds; images without any class in none.

    First every class, the rarest first, claims images that hold it until its step has `least` of them. Each
    image left goes to one of the steps whose classes it holds, drawn by its hash with the steps' numbers of
    classes as weights: so a step's share of the images follows its share of the classes, as in the published
    partition, whose own seed was lost.
    """
    owner = {value: index for index, group in enumerate(groups) for value in group}
    ids = sorted(present, key=lambda id: (id_hash(id), id))
    holding = {value: [id for id in ids if value in present[id]] for value in owner}
    step_of: dict[str, int] = {}
    for value in sorted(owner, key=lambda value: (len(holding[value]), value)):
        claimed = sum(step_of.get(id) == owner[value] for id in holding[value])
        free = [id for id in holding[value] if id not in step_of]
        step_of.update(dict.fromkeys(free[: max(0, least - claimed)], owner[value]))
    for id in ids:
        steps = sorted({owner[value] for value in present[id] if value in owner})
        if id not in step_of and steps:
            tickets = [step for step in steps for _ in groups[step]]
            step_of[id] = tickets[id_hash(f"{id} step") % len(tickets)]
    return [sorted(id for id, step in step_of.items() if step == index) for index in range(len(groups))]


def held_out(ids: Sequence[str], share: float) -> frozenset[str]:
    """`share` of all ids: those with the smallest hashes, the same in any order and on any machine."""
    if not 0 <= share < 1:
        raise TissError(
            f"{share:g}: give a share from 0 (none) to less than 1, such as 0.2", setting="holdout"
        )
    if share == 0:
        return frozenset()
    count = max(1, round(share * len(ids)))
    if count >= len(ids):
        message = f"{share:g} would take all {len(ids)} training images: give a smaller share"
        raise TissError(message, setting="holdout")
    return frozenset(sorted(ids, key=lambda id: (id_hash(id), id))[:count])


def id_hash(id: str) -> int:
    """64 bits of an id, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little")


def read_lists(folder: Path, steps: int, ids: Sequence[str]) -> list[list[str]]:
    """The sorted ids of each step from `train-K.npy` or `train-K.txt` in `folder`.

    A .npy file holds indices into the sorted `ids`, a .txt file one id or index per line. There must be exactly
    one list for each step; indices out of range, unknown ids and repeats are errors that name the file.
    """
    if not folder.is_dir():
        raise TissError(f"{folder}: no such folder", setting="lists")
    ids = sorted(ids)
    lists = []
    for step in range(steps):
        path = _find(folder, step)
        if path is None:
            message = f"{folder}: no train-{step}.npy or train-{step}.txt; the task has {steps} steps"
            raise TissError(message, setting="lists")
        lists.append(_read(path, ids))
    extra = _find(folder, steps)
    if extra is not None:
        raise TissError(
            f"{extra}: the task has {steps} steps (0 to {steps - 1}); is it another task's folder?"
        )
    return lists


def _find(folder: Path, step: int) -> Path | None:
    paths = (folder / f"train-{step}.{ending}" for ending in ("npy", "txt"))
    return next((path for path in paths if path.is_file()), None)


def _read(path: Path, ids: Sequence[str]) -> list[str]:
    chosen = _from_array(path, ids) if path.suffix == ".npy" else _from_text(path, ids)
    if len(set(chosen)) < len(chosen):
        twice, _ = Counter(chosen).most_common(1)[0]
        raise TissError(f"{path}: {twice} is in the list twice")
    if not chosen:
        raise TissError(f"{path}: the list is empty")
    return sorted(chosen)


def _from_array(path: Path, ids: Sequence[str]) -> list[str]:
    try:
        # Mapped, so that a header that promises more than the file holds is refused and not allocated.
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # its header is a literal of Python's, and fails in as many ways
        raise TissError(f"{path}: not a readable .npy file ({error})") from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TissError(f"{path}: expected one row of whole numbers, indices into the sorted training ids")
    return [_at(path, int(index), ids) for index in array]


def _from_text(path: Path, ids: Sequence[str]) -> list[str]:
    words = read_text(path).split()
    known = set(ids)
    if words and words[0] not in known and all(word.isdecimal() and len(word) < 10 for word in words):
        return [_at(path, int(word), ids) for word in words]
    for word in words:
        if word not in known:
            raise TissError(f"{path}: {word} is no training id of this data set")
    return words


def _at(path: Path, index: int, ids: Sequence[str]) -> str:
    if not 0 <= index < len(ids):
        raise TissError(
            f"{path}: index {index}, but the data set has {len(ids)} training images (0 to {len(ids) - 1})"
        )
    return ids[index]
