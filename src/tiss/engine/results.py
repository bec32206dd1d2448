"""results.json: always computed anew from the confusion matrices in the step folders, so it cannot drift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from tiss import __version__
from tiss.config import RunConfig
from tiss.engine.results_schema import FORMAT
from tiss.errors import TissError
from tiss.evaluation.scores import run_scores
from tiss.files import read_tensors, write_json, write_tensors
from tiss.scenarios.scenario import Scenario


def step_folder(run: Path, step: int) -> Path:
    return run / f"step-{step}"


def save_confusion(folder: Path, matrix: Tensor) -> None:
    write_tensors(folder / "confusion.safetensors", {"confusion": matrix.cpu()})


def read_confusion(folder: Path) -> Tensor:
    path = folder / "confusion.safetensors"
    matrix = read_tensors(path).get("confusion")
    if matrix is None or matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.is_floating_point():
        raise TissError(
            f"{path}: holds no confusion matrix; without {folder}, tiss run --resume does the step again"
        )
    return matrix


def finished_steps(run: Path, steps: int) -> int:
    """How many steps, from the first on, have their folder."""
    done = 0
    while done < steps and (step_folder(run, done) / "confusion.safetensors").exists():
        done += 1
    return done


def results_of(run: Path, config: RunConfig, scenario: Scenario) -> dict[str, Any]:
    """The scores of every finished step, as written to results.json (docs/design.md has the schema)."""
    done = finished_steps(run, len(scenario))
    matrices = [read_confusion(step_folder(run, step)) for step in range(done)]
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


def write_results(run: Path, config: RunConfig, scenario: Scenario) -> dict[str, Any]:
    results = results_of(run, config, scenario)
    write_json(run / "results.json", results)
    return results
