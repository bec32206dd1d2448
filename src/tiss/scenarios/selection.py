"""Which images a step may see, and which are kept out of every step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from tiss.errors import TissError
from tiss.scenarios.task import Groups

Present = Mapping[str, frozenset[int]]  # id → label values in its mask

SETUPS = ("overlapped", "disjoint")


def select(present: Present, groups: Groups, setup: str) -> list[list[str]]:
    """The sorted ids of each step's training images.

    Overlapped: images with at least one pixel of a current class. Disjoint: those with no class of a later
    step as well, so that no image is in two steps.

    >>> select({"a": frozenset({1}), "b": frozenset({1, 2})}, ((1,), (2,)), "disjoint")
    [['a'], ['b']]
    """
    if setup not in SETUPS:
        raise TissError(f"--setup {setup}: choose overlapped or disjoint")
    lists = []
    for index, group in enumerate(groups):
        current = frozenset(group)
        future = frozenset(value for later in groups[index + 1 :] for value in later)
        forbidden = future if setup == "disjoint" else frozenset[int]()
        lists.append([id for id in sorted(present) if present[id] & current and not present[id] & forbidden])
    return lists


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
