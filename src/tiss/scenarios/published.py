"""Each step's list of images compared with the published one: count, SHA-256, and why they differ."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from tiss.data.classes import read_table
from tiss.data.folder import read_list
from tiss.scenarios.scenario import Scenario

HASH = "sha256_of_sorted_ids_joined_by_newline"
_NAMED = 20  # ids named in an explanation

Pixels = Mapping[str, Mapping[int, int]]  # id → label value → pixels


@dataclass(frozen=True)
class Comparison:
    """One step of one task: our list and what is published of it (None: nothing)."""

    task: str
    setup: str
    step: int
    images: int
    sha256: str
    published_images: int | None = None
    published_sha256: str | None = None
    comparable: bool = True  # False: the published lists cannot be made from the masks
    explanation: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool | None:
        """Whether count and, where published, hash agree; None where nothing can be compared."""
        if self.published_images is None or not self.comparable:
            return None
        return self.images == self.published_images and self.published_sha256 in (None, self.sha256)


def list_hash(ids: Iterable[str]) -> str:
    """SHA-256 of the sorted ids joined by newlines.

    >>> list_hash(["b", "a"])[:12]
    '7e18f737311b'
    """
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()


def published_tasks(name: str) -> list[tuple[str, str]]:
    """Task and setup of every published split of the data set `name`, in the table's order."""
    return list(dict.fromkeys((row["task"], row["setup"]) for row in _rows(name, "splits")))


def compare_task(
    pixels: Pixels, scenario: Scenario, published: Path | None = None, from_lists: bool = False
) -> list[Comparison]:
    """The training lists of a scenario beside the published figures.

    `pixels` is the class index of the training split; `published` a folder with the published ids themselves
    (`train-<step>.txt`), with which a difference is explained id by id; `from_lists` says that the scenario
    was made from lists and not from the masks, which some published splits (ADE20K's) need.
    """
    task, setup, rows = scenario.task, scenario.setup, _rows(scenario.dataset.name, "splits")
    known = {int(row["step"]): row for row in rows if (row["task"], row["setup"]) == (task, setup)}
    result = []
    for step, ids in enumerate(scenario.lists):
        figures: dict[str, Any] = {}
        if row := known.get(step):
            figures = {"published_images": int(row["images"]), "published_sha256": row[HASH] or None}
            figures["comparable"] = from_lists or row.get("made_from") != "lists"
        ours = Comparison(task, setup, step, len(ids), list_hash(ids), **figures)
        if ours.same is False and from_lists:
            text = f"the lists given hold {len(ids)} images here: another task's, or another version of them"
            ours.explanation.append(text)
        elif ours.same is False and published and (path := published / f"train-{step}.txt").is_file():
            ours.explanation.extend(explain(step, read_list(path), pixels, scenario))
        elif ours.same is False:
            ours.explanation.append("set lists to a folder with the published ids to see which ones differ")
        result.append(ours)
    return result


def explain(step: int, theirs: Sequence[str], pixels: Pixels, scenario: Scenario) -> list[str]:
    """Which ids make the difference to the published list of a step, and why."""
    classes, current = scenario.dataset.classes, scenario.values[step]

    def held(id: str, values: Iterable[int]) -> str:
        shown = sorted(pixels[id].keys() & set(values))
        return ", ".join(f"{classes[value - 1]} ({pixels[id][value]} pixels)" for value in shown)

    lines = []
    for id in sorted(set(theirs) - set(scenario.lists[step])):
        if id not in pixels:
            why = "the training list lacks it"
        elif pixels[id].keys() & set(current):
            why = f"its mask holds a class of a later step: {held(id, chain(*scenario.values[step + 1 :]))}"
        else:
            others = held(id, range(1, len(classes) + 1))
            why = f"its mask holds no class of this step, only {others or 'background'}"
        lines.append(f"{id} is missing: {why}")
    for id in sorted(set(scenario.lists[step]) - set(theirs)):
        lines.append(f"{id} is too many: its mask holds {held(id, current)}")
    if not lines:
        return ["the ids agree with the lists given, which differ from the published hash"]
    return lines[:_NAMED] + ([f"… and {len(lines) - _NAMED} more ids"] if len(lines) > _NAMED else [])


def find_lists(folder: Path, task: str, setup: str) -> Path | None:
    """The folder of one task's lists among those of several: `15-1-overlapped`, `15-1`, or `50` for 50-50."""
    first, _, later = task.partition("-")
    names = [f"{task}-{setup}", task, *([first] if first == later else [])]
    return next((folder / name for name in names if (folder / name).is_dir()), None)


def compare_lists(name: str, ids: Mapping[str, Sequence[str]]) -> list[str]:
    """One line for every split whose whole list differs from the published one; `ids` by split."""
    lines = []
    for row in (row for row in _rows(name, "lists") if row["split"] in ids):
        split, images = row["split"], int(row["images"])
        if len(ids[split]) != images:
            lines.append(f"{split}: {len(ids[split])} ids in the list, published are {images}")
        elif row[HASH] not in ("", list_hash(ids[split])):
            lines.append(f"{split}: the list has {images} ids as published, but other ones")
    return lines


def _rows(name: str, what: str) -> Sequence[dict[str, str]]:
    try:
        return read_table(f"{name}_{what}")
    except FileNotFoundError:
        return []
