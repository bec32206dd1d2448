"""What results.json must look like before anybody computes with it; docs/design.md describes the format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiss.errors import TissError
from tiss.files import read_json

FORMAT = 1
KINDS: dict[type, str] = {
    dict: "a mapping",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a count",
}


class MisfitError(Exception):
    """A place in the file and what is wrong there."""


def read_results(path: Path) -> dict[str, Any]:
    """results.json, checked; damage or another format is an error that names the file and the remedy."""
    remedy = (
        f"tiss run --config {path.parent / 'config.yaml'} --out {path.parent} --resume writes it anew "
        "from the step folders"
        if path.name == "results.json"
        else "tiss report RUN --collect FOLDER writes it anew from its run"
    )
    try:
        return check_results(read_json(path))
    except TissError as error:
        raise TissError(f"{error}; {remedy}") from error
    except MisfitError as error:
        raise TissError(f"{path}: not whole, or not from tiss: {error}; {remedy}") from error


def check_results(values: Any) -> dict[str, Any]:
    """Returns `values` if every part that tables and figures read is there and of its kind."""
    results = expect(values, dict, "the file")
    if results.get("format") != FORMAT:
        raise MisfitError(f"format {results.get('format')!r}, this tiss reads format {FORMAT}")
    for key in ("data", "setup", "protocol", "method"):
        part(results, key, str)
    part(results, "seed", int, below=None)
    part(results, "finished", bool)
    part(results, "has_background", bool)
    names = part(results, "classes", list)
    for name in names:
        expect(name, str, "classes")
    groups = part(results, "groups", list)
    for index, group in enumerate(groups):
        for channel in expect(group, list, f"groups[{index}]"):
            expect(channel, int, f"groups[{index}]", below=len(names))
    if "task" not in results:
        raise MisfitError("no 'task'")
    if results.get("holdout") is not None:
        percentage(results["holdout"], "holdout")
    if results.get("config") is not None:
        part(results, "config", dict)
    steps = part(results, "steps", list)
    if len(steps) > len(groups):
        raise MisfitError(f"{len(steps)} steps for {len(groups)} groups of classes")
    for index, step in enumerate(steps):
        check_step(step, f"steps[{index}]", len(names), len(groups))
    check_mean(part(results, "average", dict), "average")
    return results


def check_step(step: Any, where: str, classes: int, groups: int) -> None:
    """One entry of `steps`."""
    entry = expect(step, dict, where)
    part(entry, "seen", int, where, below=classes + 1)
    for key in ("iou", "forgetting"):
        for name, value in part(entry, key, dict, where).items():
            percentage(value, f"{where}.{key}.{name}", empty=key == "iou")
    scores = part(entry, "scores", dict, where)
    for key in ("all", "old", "new", "harmonic"):
        check_mean(part(scores, key, dict, f"{where}.scores"), f"{where}.scores.{key}")
    means = part(scores, "groups", list, f"{where}.scores")
    if len(means) > groups:
        raise MisfitError(f"{where}.scores.groups: more than there are groups of classes")
    for mean in means:
        check_mean(mean, f"{where}.scores.groups")
    for name in part(entry, "absent", list, where):
        expect(name, str, f"{where}.absent")
    percentage(part(entry, "pixel_accuracy", None, where), f"{where}.pixel_accuracy")


def check_mean(mean: Any, where: str) -> None:
    """A mean with and without the background, and nothing else."""
    entry = expect(mean, dict, where)
    for key in ("with_background", "without_background"):
        percentage(part(entry, key, None, where), f"{where}.{key}")
    if len(entry) > 2:
        raise MisfitError(f"{where}: more than two means")


def part(
    mapping: Mapping[str, Any], key: str, kind: type | None, where: str = "", below: int | None = 1 << 31
) -> Any:
    """The value under `key`, which must be there and of `kind`."""
    name = f"{where}.{key}" if where else key
    if key not in mapping:
        raise MisfitError(f"no '{name}'")
    return mapping[key] if kind is None else expect(mapping[key], kind, name, below)


def expect(value: Any, kind: type, where: str, below: int | None = 1 << 31) -> Any:
    """`value`, if it is of `kind`; counts lie in 0 … `below` − 1 unless that is None."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise MisfitError(f"{where}: {KINDS[kind]} expected")
    if isinstance(value, int) and kind is int and below is not None and not 0 <= value < below:
        raise MisfitError(f"{where}: {str(value)[:40]} is out of range")
    return value


def percentage(value: Any, where: str, empty: bool = True) -> None:
    if value is None and empty:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -101 < value < 101:
        raise MisfitError(f"{where}: a percentage expected")
