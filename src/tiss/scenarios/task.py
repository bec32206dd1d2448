"""Which classes come when: tasks `a-b`, explicit groups, and the order of the classes.

Classes are given by name or by label value (1..K). Everything here returns label values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tiss.errors import TissError, suggest
from tiss.randomness import stream

Groups = tuple[tuple[int, ...], ...]
TaskLike = str | Sequence[Sequence[str | int]]
OrderLike = str | Sequence[str | int]


def parse_task(task: TaskLike, classes: Sequence[str], order: OrderLike | None = None) -> Groups:
    """The label values of each step's new classes.

    `a-b` takes the first `a` classes of `order`, then `b` at a time until all are used; groups such as
    'cat,dog/person' (or lists of names) may leave classes out, which then always stay background.

    >>> parse_task("2-1", ["cat", "dog", "person"])
    ((1, 2), (3,))
    >>> parse_task("person/cat,dog", ["cat", "dog", "person"])
    ((3,), (1, 2))
    """
    values = parse_order(order, classes)
    if isinstance(task, str):
        sizes = re.fullmatch(r"\s*(\d+)-(\d+)\s*", task)
        if sizes and task.strip() not in classes:
            return _by_size(int(sizes[1]), int(sizes[2]), values)
        task = [[name.strip() for name in group.split(",")] for group in task.split("/")]
    if order is not None:
        raise TissError("works with a task a-b only: groups are in their own order already", setting="order")
    return _explicit(task, classes)


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
            return _random_order(order, count)
        order = [name.strip() for name in order.split(",")]
    values = tuple(class_value(name, classes, "order") for name in order)
    for value in values:
        if values.count(value) > 1:
            raise TissError(f"names {classes[value - 1]!r} twice", setting="order")
    if len(values) < count:
        missing = [classes[value - 1] for value in range(1, count + 1) if value not in values]
        raise TissError(f"leaves out {_listed(missing)}: it must name all {count} classes", setting="order")
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


def _random_order(order: str, count: int) -> tuple[int, ...]:
    seed = order.removeprefix("random:")
    if not seed.isdigit():
        raise TissError(f"{order}: the seed must be a whole number, as in random:0", setting="order")
    return tuple(int(value) + 1 for value in stream(int(seed), "class order").permutation(count))


def _by_size(first: int, later: int, values: tuple[int, ...]) -> Groups:
    count = len(values)
    rest = count - first
    if first < 1 or later < 1 or rest < 0 or rest % later:
        message = f"{first}-{later} does not fit {count} classes: {_fitting(first, later, count)}"
        raise TissError(message, setting="task")
    starts = range(first, count, later)
    return (values[:first], *(values[start : start + later] for start in starts))


def _fitting(first: int, later: int, count: int) -> str:
    """The nearest tasks that use all classes, first those with the same beginning."""
    rest = count - first
    same_first = [f"{first}-{b}" for b in range(1, rest + 1) if rest % b == 0] if 1 <= first < count else []
    same_later = [f"{a}-{later}" for a in range(1, count) if later >= 1 and (count - a) % later == 0]
    same_later.sort(key=lambda task: abs(int(task.split("-")[0]) - first))
    fitting = dict.fromkeys([*same_first[:3], *same_first[-1:], *same_later[:2], f"{max(1, count - 1)}-1"])
    return "tasks that do: " + ", ".join(fitting)


def _explicit(task: Sequence[Sequence[str | int]], classes: Sequence[str]) -> Groups:
    groups = tuple(tuple(class_value(name, classes, "task") for name in group) for group in task)
    if not groups or not all(groups):
        raise TissError("has a group without classes: write groups as 'cat,dog/person'", setting="task")
    owner: dict[int, int] = {}
    for index, group in enumerate(groups):
        for value in group:
            if value in owner:
                twice = owner[value] == index
                where = f"group {index}, twice" if twice else f"groups {owner[value]} and {index}"
                raise TissError(
                    f"has overlapping groups: {classes[value - 1]!r} is in {where}", setting="task"
                )
            owner[value] = index
    return groups


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
