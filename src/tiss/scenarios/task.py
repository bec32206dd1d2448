"""Which classes and images come when: tasks `a-b`, explicit groups, the order of the classes, the setups.

Classes are given by name or by label value (1..K). Everything here returns label values. The images of a step follow
from the setup or from published lists; some may be kept out of every step, and some of earlier steps in memory.
"""

import hashlib
import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from tiss.errors import TissError, listed, suggest
from tiss.files import read_text
from tiss.randomness import stream

Groups = tuple[tuple[int, ...], ...]
TaskLike = str | Sequence[Sequence[str | int]]
OrderLike = str | Sequence[str | int]
Present = Mapping[str, frozenset[int]]  # id → label values in its mask
# id → the steps that the image comes from, whose classes are labelled in it
Exemplars = dict[str, tuple[int, ...]]

SETUPS = ("overlapped", "disjoint", "sequential", "partitioned", "domains")
PARTITIONED = ("ade20k",)  # nearly every image holds a future class there: disjoint means partitioned instead
LEAST = 50  # images that a class gets in its own step, where the data has them


def parse_task(task: TaskLike, classes: Sequence[str], order: OrderLike | None = None) -> Groups:
    """The label values of each step's new classes.

    `a-b` takes the first `a` classes of `order`, then `b` at a time until all are used; groups such as
    'cat,dog/person' (or lists of names) may leave classes out, which then always stay background.

    >>> parse_task("2-1", ["cat", "dog", "person"])
    ((1, 2), (3,))
    >>> parse_task("person/cat,dog", ["cat", "dog", "person"])
    ((3,), (1, 2))
    """
    values, count = parse_order(order, classes), len(classes)
    if isinstance(task, str):
        sizes = re.fullmatch(r"\s*(\d+)-(\d+)\s*", task)
        like = re.fullmatch(r"\s*(\d+)(?:[-_. ]+(\d+))?[a-z]?\s*", task)
        if like and not sizes and task.strip() not in classes:
            first, later = like[1], like[2] or 1
            message = f"{task}: write {first}-{later} for {first} classes, then {later} per step"
            raise TissError(message, setting="task")
        if sizes and task.strip() not in classes:
            first, later = int(sizes[1]), int(sizes[2])
            if first < 1 or later < 1 or first > count or (count - first) % later:
                message = f"{first}-{later} does not fit {count} classes: {_fitting(first, later, count)}"
                raise TissError(message, setting="task")
            starts = range(first, count, later)
            return (values[:first], *(values[start : start + later] for start in starts))
        task = [[name.strip() for name in group.split(",")] for group in task.split("/")]
    if order is not None:
        raise TissError("works with a task a-b only: groups are in their own order already", setting="order")
    groups = tuple(tuple(class_value(name, classes, "task") for name in group) for group in task)
    if not groups or not all(groups):
        raise TissError("has a group without classes: write groups as 'cat,dog/person'", setting="task")
    owner: dict[int, int] = {}
    for index, group in enumerate(groups):
        for value in group:
            if (other := owner.setdefault(value, index)) != index or group.count(value) > 1:
                where = f"group {index}, twice" if other == index else f"groups {other} and {index}"
                message = f"has overlapping groups: {classes[value - 1]!r} is in {where}"
                raise TissError(message, setting="task")
    return groups


def parse_order(order: OrderLike | None, classes: Sequence[str]) -> tuple[int, ...]:
    """All label values in the order in which an `a-b` task adds them.

    >>> parse_order("dog,person,cat", ["cat", "dog", "person"])
    (2, 3, 1)
    """
    count = len(classes)
    if count == 0:
        raise TissError("the data set has no classes: its class list is empty")
    if order is None:
        return tuple(range(1, count + 1))
    if isinstance(order, str):
        if order.startswith("random:"):
            seed = order.removeprefix("random:")
            if not seed.isdigit():
                raise TissError(f"{order}: the seed must be a whole number, as in random:0", setting="order")
            return tuple(int(value) + 1 for value in stream(int(seed), "class order").permutation(count))
        order = [name.strip() for name in order.split(",")]
    values = tuple(class_value(name, classes, "order") for name in order)
    for value in values:
        if values.count(value) > 1:
            raise TissError(f"names {classes[value - 1]!r} twice", setting="order")
    if len(values) < count:
        missing = [name for value, name in enumerate(classes, 1) if value not in values]
        raise TissError(f"leaves out {listed(missing, 8)}: it must name all {count} classes", setting="order")
    return values


def class_value(name: str | int, classes: Sequence[str], setting: str) -> int:
    """The label value of a class given by name or number; the error for an unknown one suggests the nearest."""
    text = str(name)
    if text in classes:
        return list(classes).index(text) + 1
    if text.isdigit():
        if 1 <= int(text) <= len(classes):
            return int(text)
        message = f"has no class number {text}: the data set's classes are 1 to {len(classes)}"
    elif not text:
        message = "has an empty class name: write names with commas, groups with '/'"
    else:
        message = f"has an {suggest(text, classes, 'class')}"
    raise TissError(message, setting=setting)


def task_name(groups: Groups, classes: Sequence[str]) -> str:
    """`a-b` where the sizes of the groups allow it, otherwise their names."""
    sizes = [len(group) for group in groups]
    if sum(sizes) == len(classes) and len(set(sizes[1:])) <= 1:
        return f"{sizes[0]}-{sizes[1] if len(sizes) > 1 else 1}"
    return "/".join(",".join(classes[value - 1] for value in group) for group in groups)


def _fitting(first: int, later: int, count: int) -> str:
    """The nearest tasks that use all classes, first those with the same beginning."""
    rest = count - first
    same_first = [f"{first}-{b}" for b in range(1, rest + 1) if rest % b == 0] if 1 <= first < count else []
    same_later = [f"{a}-{later}" for a in range(1, count) if later >= 1 and (count - a) % later == 0]
    same_later.sort(key=lambda task: abs(int(task.split("-")[0]) - first))
    fitting = dict.fromkeys([*same_first[:3], *same_first[-1:], *same_later[:2], f"{max(1, count - 1)}-1"])
    return "tasks that do: " + ", ".join(fitting)


def select(present: Present, groups: Groups, setup: str) -> list[list[str]]:
    """The sorted ids of each step's training images.

    Overlapped: images with at least one pixel of a current class. Disjoint and sequential: those that hold no class
    of a later step, so that no image is in two steps.

    >>> select({"a": frozenset({1}), "b": frozenset({1, 2})}, ((1,), (2,)), "disjoint")
    [['a'], ['b']]
    """
    lists = []
    for index, group in enumerate(groups):
        forbidden = set() if setup == "overlapped" else set(chain(*groups[index + 1 :]))
        allowed = (id for id in sorted(present) if not present[id] & forbidden)
        lists.append([id for id in allowed if not present[id].isdisjoint(group)])
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
    return frozenset(first_by_hash(ids, count))


def first_by_hash(ids: Sequence[str], count: int) -> list[str]:
    """`count` of the ids: those with the smallest hashes."""
    return sorted(ids, key=lambda id: (id_hash(id), id))[:count]


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
    lists = []
    for step in range(steps + 1):
        paths = (folder / f"train-{step}.{ending}" for ending in ("npy", "txt"))
        path = next((path for path in paths if path.is_file()), None)
        if step < steps and path is None:
            message = f"{folder}: no train-{step}.npy or train-{step}.txt; the task has {steps} steps"
            raise TissError(message, setting="lists")
        if step == steps and path is not None:
            message = f"{path}: the task has {steps} steps (0 to {steps - 1}); is it another task's folder?"
            raise TissError(message)
        if path is not None:
            lists.append(_read_list(path, sorted(ids)))
    return lists


def check_lists(folder: Path, lists: Sequence[Sequence[str]], present: Present, groups: Groups) -> None:
    """Refuses lists that cannot be this task's: most images of a step would hold none of its classes."""
    for step, (ids, group) in enumerate(zip(lists, groups, strict=True)):
        known = [present[id] for id in ids if id in present]
        fitting = sum(not values.isdisjoint(group) for values in known)
        if 2 * fitting < len(known):
            message = f"{folder}: only {fitting} of the {len(known)} images of step {step} hold a class of that step"
            raise TissError(f"{message}; the lists are of another task or order of classes", setting="lists")


def _read_list(path: Path, ids: Sequence[str]) -> list[str]:
    known, found = set(ids), (_read_array if path.suffix == ".npy" else _read_words)(path, ids)
    chosen = []
    for place in found:
        if isinstance(place, str) and place not in known:
            raise TissError(f"{path}: {place} is no training id of this data set")
        if isinstance(place, int) and not 0 <= place < len(ids):
            span = f"{len(ids)} training images (0 to {len(ids) - 1})"
            raise TissError(f"{path}: index {place}, but the data set has {span}")
        chosen.append(ids[place] if isinstance(place, int) else place)
    if len(set(chosen)) < len(chosen):
        twice, _ = Counter(chosen).most_common(1)[0]
        raise TissError(f"{path}: {twice} is in the list twice")
    if not chosen:
        raise TissError(f"{path}: the list is empty")
    return sorted(chosen)


def _read_array(path: Path, ids: Sequence[str]) -> Sequence[str | int]:
    try:
        # Mapped, so that a header that promises more than the file holds is refused and not allocated.
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # its header is a literal of Python's, and fails in as many ways
        raise TissError(f"{path}: not a readable .npy file ({error})") from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TissError(f"{path}: expected one row of whole numbers, indices into the sorted training ids")
    return [int(index) for index in array]


def _read_words(path: Path, ids: Sequence[str]) -> Sequence[str | int]:
    words = read_text(path).split()
    if words and words[0] not in ids and all(word.isdecimal() and len(word) < 10 for word in words):
        return [int(word) for word in words]
    return words


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
