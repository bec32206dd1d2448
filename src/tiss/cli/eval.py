"""Tests the model of a finished step of a run again, with the run's own settings, and compares with what the run
wrote: the same figures to the last digit on the same machine. --mode slide tests whole images instead.

Examples:
  tiss eval runs/shapes-4-2-overlapped-tiss-seed0
  tiss eval runs/voc-15-1-overlapped-mib-seed0 --step 2 --mode slide --root VOCdevkit
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Literal

from tiss.config import REQUIRED, setting


@dataclass(frozen=True)
class Options:
    run: str = setting(REQUIRED, "run folder", positional=True)
    step: int = setting(-1, "the step whose model is tested; negative counts from the last finished one")
    mode: Literal["crop", "slide"] | None = setting(None, "crop or slide (None: as in the run)")
    root: str | None = setting(None, "where the data are now, if they have moved", sets="data.root")
    json: bool = setting(False, "print the scores as JSON")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")


def run(options: Options) -> int:
    import torch

    from tiss.engine.learner import Learner
    from tiss.engine.run import load_run
    from tiss.evaluation.scores import scores_from_confusion

    run = load_run(options.run, options.root)
    model = run.model(options.step)
    step = options.step % run.steps_done
    config = replace(run.config, train=replace(run.config.train, device=options.device))
    evaluation = replace(config.eval, mode=options.mode or config.eval.mode)
    learner = Learner(config=config, model=model)
    matrix = learner.confusion(run.scenario[step].test, evaluation)
    if not learner.world.is_main:
        return 0
    groups = run.scenario.groups if len(run.scenario) == 1 else run.scenario.groups[: step + 1]
    scores = scores_from_confusion(
        matrix, run.scenario.classes[: len(model.classes)], groups, has_background=run.scenario.has_background
    )
    print(json.dumps(scores.to_json(), indent=2) if options.json else scores)
    if evaluation != run.config.eval:
        return 0
    same = torch.equal(matrix.cpu(), run.files.step(step).confusion())
    print(
        "the same as when it was trained, pixel by pixel" if same else "not the same as when it was trained"
    )
    return 0 if same else 1
