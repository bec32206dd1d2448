"""Exemplar memory: which training images of earlier steps a later step is shown again."""

from collections import deque
from collections.abc import Sequence
from itertools import chain

import numpy as np

from tiss.randomness import stream
from tiss.scenarios.task import Groups, Present

Exemplars = dict[
    str, tuple[int, ...]
]  # id → the steps that the image comes from, whose classes are labelled in it


def draw_memory(
    lists: Sequence[Sequence[str]], groups: Groups, present: Present, size: int, seed: int
) -> list[Exemplars]:
    """The images in memory at each step, `size` in all: a function of the seed and the step.

    Before each step the memory is drawn again from the images that it holds and those of the step before, so what it
    gave up does not come back. Classes take turns in a random order; each takes an image, at random, in which it is
    labelled (SSUL-M's class-balanced choice).

    >>> draw_memory([["a", "b"], ["b", "c"], ["d"]], ((1,), (2,), (3,)), {id: frozenset({1, 2}) for id in "abcd"}, 9, 0)
    [{}, {'a': (0,), 'b': (0,)}, {'a': (0,), 'b': (0, 1), 'c': (1,)}]
    """
    drawn: list[Exemplars] = [{}]
    for step, ids in enumerate(lists[:-1]):
        known = dict(drawn[-1])
        for id in ids:
            known[id] = (*known.get(id, ()), step)
        labelled = {id: present[id] & set(chain(*(groups[s] for s in known[id]))) for id in known}
        chosen = balanced(labelled, size, stream(seed, "memory", step + 1))
        drawn.append({id: known[id] for id in chosen})
    return drawn


def balanced(labelled: Present, size: int, random: np.random.Generator) -> list[str]:
    """`size` ids, sorted, or all with a class: the classes take one of theirs in turn."""
    ids = sorted(labelled)
    waiting: dict[int, deque[str]] = {value: deque() for value in sorted(set().union(*labelled.values()))}
    for place in random.permutation(len(ids)).tolist():
        for value in labelled[ids[place]]:
            waiting[value].append(ids[place])
    queues = [[*waiting.values()][place] for place in random.permutation(len(waiting)).tolist()]
    chosen: set[str] = set()
    while queues and len(chosen) < size:
        for queue in queues:
            while queue and queue[0] in chosen:
                queue.popleft()
            if queue and len(chosen) < size:
                chosen.add(queue.popleft())
        queues = [queue for queue in queues if queue]
    return sorted(chosen)
