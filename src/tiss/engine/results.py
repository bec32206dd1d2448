"""results.json: computed from the confusion matrices in the step folders, and checked before anybody reads it.

docs/design.md describes the format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiss import __version__
from tiss.config import RunConfig
from tiss.engine.run_folder import RunFolder
from tiss.errors import TissError
from tiss.evaluation.scores import run_scores
from tiss.files import read_json, write_json
from tiss.scenarios.scenario import Scenario

FORMAT = 1
PERCENT = float  # a percentage, or None where there is nothing to average
MEAN = {"with_background": PERCENT, "without_background": PERCENT}
SCORES = {"all": MEAN, "old": MEAN, "new": MEAN, "harmonic": MEAN, "groups": [MEAN]}
STEP = {
    "seen": int,
    "iou": {str: PERCENT},
    "forgetting": {str: PERCENT},
    "scores": SCORES,
    "absent": [str],
    "pixel_accuracy": PERCENT,
}
RESULTS = {
    "data": str,
    "task": object,
    "setup": str,
    "protocol": str,
    "method": str,
    "seed": int,
    "finished": bool,
    "classes": [str],
    "has_background": bool,
    "groups": [[int]],
    "steps": [STEP],
    "average": MEAN,
}
KINDS = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", int: "a whole number"}


class MisfitError(Exception):
    """A place in the file and what is wrong there."""


def results_of(run: RunFolder, config: RunConfig, scenario: Scenario) -> dict[str, Any]:
    """The scores of every finished step, as written to results.json."""
    done = run.finished_steps(len(scenario))
    matrices = [run.step(index).confusion() for index in range(done)]
    scored = run_scores(
        matrices, scenario.classes, scenario.groups, has_background=scenario.dataset.has_background
    )
    for entry, step in zip(scored["steps"], scenario, strict=False):
        entry["train_images"], entry["test_images"] = len(step.train), len(step.test)
    return {
        "format": FORMAT,
        "tiss": __version__,
        "data": config.data.name,
        "task": config.task,
        "setup": config.setup,
        "protocol": config.protocol.name,
        "holdout": config.holdout,
        "method": config.method.name,
        "encoder": config.model.encoder,
        "decoder": config.model.decoder,
        "seed": config.seed,
        "finished": done == len(scenario),
        "classes": list(scenario.classes),
        "has_background": scenario.dataset.has_background,
        "groups": [list(group) for group in scenario.groups],
        **scored,
    }


def write_results(run: RunFolder, config: RunConfig, scenario: Scenario) -> dict[str, Any]:
    results = results_of(run, config, scenario)
    write_json(run.path / "results.json", results)
    return results


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


def check_results(values: Any) -> dict[str, Any]:
    """Returns `values` if every part that tables and figures read is there and of its kind."""
    results: dict[str, Any] = expect(values, dict, "the file")
    if results.get("format") != FORMAT:
        raise MisfitError(f"format {results.get('format')!r}, this tiss reads format {FORMAT}")
    check(results, RESULTS, "")
    check(results.get("holdout"), PERCENT, "holdout")
    if results.get("config") is not None:
        expect(results["config"], dict, "config")
    classes, groups, steps = len(results["classes"]), results["groups"], results["steps"]
    if any(not 0 <= channel < classes for group in groups for channel in group):
        raise MisfitError("groups: a channel is out of range")
    if len(steps) > len(groups) or any(len(step["scores"]["groups"]) > len(groups) for step in steps):
        raise MisfitError(f"steps: more than the {len(groups)} groups of classes")
    if any(not 0 <= step["seen"] <= classes for step in steps):
        raise MisfitError("steps: seen is out of range")
    if any(value is None for step in steps for value in step["forgetting"].values()):
        raise MisfitError("steps: forgetting of nothing")
    return results


def check(value: Any, spec: Any, where: str) -> None:
    """Holds `value` against a part of the specification: a kind, a list of one, or a mapping."""
    if isinstance(spec, list):
        for index, item in enumerate(expect(value, list, where)):
            check(item, spec[0], f"{where}[{index}]")
    elif isinstance(spec, dict):
        expect(value, dict, where)
        if str in spec:
            spec = dict.fromkeys(value, spec[str])
        elif spec is MEAN and len(value) > len(MEAN):
            raise MisfitError(f"{where}: more than two means")
        for key, inner in spec.items():
            name = f"{where}.{key}" if where else key
            if key not in value:
                raise MisfitError(f"no '{name}'")
            check(value[key], inner, name)
    elif spec is PERCENT:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (number and -101 < value < 101):
            raise MisfitError(f"{where}: a percentage expected")
    else:
        expect(value, spec, where)


def expect(value: Any, kind: type, where: str) -> Any:
    """`value`, if it is of `kind`."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise MisfitError(f"{where}: {KINDS[kind]} expected")
    return value
