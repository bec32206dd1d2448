"""Which images a step may see, and which are kept out of every step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from tiss.errors import TissError
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
            step_of[id] = _weighted(steps, [len(groups[step]) for step in steps], id)
    return [sorted(id for id, step in step_of.items() if step == index) for index in range(len(groups))]


def _weighted(steps: Sequence[int], weights: Sequence[int], id: str) -> int:
    mark = id_hash(f"{id} step") % sum(weights)
    for step, weight in zip(steps, weights, strict=True):
        if mark < weight:
            return step
        mark -= weight
    raise AssertionError("the mark lies below the weights' sum")


def held_out(ids: Sequence[str], share: float) -> frozenset[str]:
    """`share` of all ids: those whose hashes are smallest, whatever their order and the machine."""
    if not 0 <= share < 1:
        raise TissError(f"--holdout {share:g}: give a share from 0 (none) to less than 1, such as 0.2")
    if share == 0:
        return frozenset()
    count = max(1, round(share * len(ids)))
    if count >= len(ids):
        raise TissError(
            f"--holdout {share:g} would take all {len(ids)} training images: give a smaller share"
        )
    return frozenset(sorted(ids, key=lambda id: (id_hash(id), id))[:count])


def id_hash(id: str) -> int:
    """64 bits of an id, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little")
