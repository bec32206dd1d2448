"""results.json, checked before anybody reads it; docs/design.md describes the format."""

from pathlib import Path
from typing import Any

from tiss.errors import TissError
from tiss.files import read_json

FORMAT = 1
PERCENT = float  # a percentage, or None where there is nothing to average
MEAN = {"with_background": PERCENT, "without_background": PERCENT}
STEP = {
    "seen": int,
    "iou": {str: PERCENT},
    "forgetting": {str: PERCENT},
    "scores": {"all": MEAN, "old": MEAN, "new": MEAN, "harmonic": MEAN, "groups": [MEAN]},
    "absent": [str],
    "pixel_accuracy": PERCENT,
}
RESULTS = {
    **dict.fromkeys(("data", "setup", "protocol", "method"), str),
    **dict.fromkeys(("finished", "has_background"), bool),
    "task": object,
    "seed": int,
    "classes": [str],
    "groups": [[int]],
    "steps": [STEP],
    "average": MEAN,
}
KINDS = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", int: "a whole number"}


class MisfitError(Exception):
    """A place in the file and what is wrong there."""


def read_results(path: Path) -> dict[str, Any]:
    """results.json, checked; damage or another format is an error that names the file and the remedy."""
    remedy = (
        f"tiss run --config {path.parent / 'config.yaml'} --out {path.parent} --resume rebuilds it "
        "from the step folders"
        if path.name == "results.json"
        else "tiss report RUN --collect FOLDER rebuilds it from its run"
    )
    try:
        return check_results(read_json(path))
    except TissError as error:
        raise TissError(f"{error}; {remedy}") from error
    except MisfitError as error:
        raise TissError(f"{path}: not whole, or not from tiss: {error}; {remedy}") from error


def check_results(results: dict[str, Any]) -> dict[str, Any]:
    """Returns `results` if every part that tables and figures read is there and of its kind."""
    check(results, {}, "the file")
    if results.get("format") != FORMAT:
        raise MisfitError(f"format {results.get('format')!r}, this tiss reads format {FORMAT}")
    check(results, RESULTS)
    check(results.get("holdout"), PERCENT, "holdout")
    if results.get("config") is not None:
        check(results["config"], {}, "config")
    classes, groups, steps = len(results["classes"]), results["groups"], results["steps"]
    for wrong, problem in (
        (any(not 0 <= i < classes for group in groups for i in group), "groups: a channel is out of range"),
        (len(steps) > len(groups), f"steps: more than the {len(groups)} groups of classes"),
        (any(len(step["scores"]["groups"]) > len(groups) for step in steps), "steps: too many groups"),
        (any(not 0 <= step["seen"] <= classes for step in steps), "steps: seen is out of range"),
        (any(None in step["forgetting"].values() for step in steps), "steps: forgetting of nothing"),
    ):
        if wrong:
            raise MisfitError(problem)
    return results


def check(value: Any, spec: Any, where: str = "") -> None:
    """Holds `value` against a part of the specification: a kind, a list of one, or a mapping."""
    kind = spec if isinstance(spec, type) else type(spec)
    if spec is PERCENT:
        if value is not None and not (type(value) in (int, float) and -101 < value < 101):
            raise MisfitError(f"{where}: a percentage expected")
    elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise MisfitError(f"{where}: {KINDS[kind]} expected")
    if isinstance(spec, list):
        for index, item in enumerate(value):
            check(item, spec[0], f"{where}[{index}]")
    elif isinstance(spec, dict):
        if spec is MEAN and len(value) > len(MEAN):
            raise MisfitError(f"{where}: more than two means")
        for key, inner in (dict.fromkeys(value, spec[str]) if str in spec else spec).items():
            name = f"{where}.{key}" if where else key
            if key not in value:
                raise MisfitError(f"no '{name}'")
            check(value[key], inner, name)
