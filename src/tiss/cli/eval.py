"""`tiss eval`: test a saved step again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tiss.cli.flags import flags_of, help_text, own_names, parse_flags
from tiss.config import from_mapping, setting
from tiss.errors import TissError

USAGE = "tiss eval RUN [--step K] [options]"
ABOUT = """
Tests the model of a finished step of the run folder RUN again, with the run's own settings, and compares with what
the run wrote: the same figures to the last digit on the same machine. --mode slide tests whole images instead.
"""
EXAMPLES = """
tiss eval runs/shapes-4-2-overlapped-tiss-seed0
tiss eval runs/voc-15-1-overlapped-mib-seed0 --step 2 --mode slide --root VOCdevkit
"""
SWITCHES = {"json": "print the scores as JSON", "help": "this text"}


@dataclass(frozen=True)
class EvalOptions:
    step: int = setting(-1, "which step's model; negative counts from the last finished one")
    mode: Literal["crop", "slide"] | None = setting(None, "crop or slide (None: as in the run)")
    root: str | None = setting(None, "where the data lie now, if they have moved")
    device: str = setting("auto", "auto, cpu, cuda or mps")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    flags = list(flags_of(EvalOptions))
    values, given, rest = parse_flags(arguments, flags, SWITCHES, positional="RUN")
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    if len(rest) != 1:
        raise TissError("tiss eval takes one run folder, for example: tiss eval runs/demo/tiss")
    return evaluate_run(rest[0], from_mapping(EvalOptions, values), "json" in given)


@own_names(EvalOptions)
def evaluate_run(folder: str, options: EvalOptions, as_json: bool) -> int:
    import json
    from dataclasses import replace

    import torch

    from tiss.engine.learner import Learner
    from tiss.engine.results import read_confusion, step_folder
    from tiss.engine.run import load_run
    from tiss.evaluation.scores import scores_from_confusion

    run = load_run(folder, options.root)
    model = run.model(options.step)
    step = options.step % run.steps_done
    config = replace(run.config, train=replace(run.config.train, device=options.device))
    evaluation = replace(config.eval, mode=options.mode or config.eval.mode)
    learner = Learner(config=config)
    learner.model = model
    matrix = learner.confusion(run.scenario[step].test, evaluation)
    if not learner.world.is_main:
        return 0
    groups = run.scenario.groups if len(run.scenario) == 1 else run.scenario.groups[: step + 1]
    scores = scores_from_confusion(
        matrix, run.scenario.classes[: len(model.classes)], groups, has_background=run.scenario.has_background
    )
    print(json.dumps(scores.to_json(), indent=2) if as_json else scores)
    if evaluation == run.config.eval:
        same = torch.equal(matrix.cpu(), read_confusion(step_folder(run.folder, step)))
        print(
            "the same as when it was trained, pixel by pixel"
            if same
            else "not the same as when it was trained"
        )
        return 0 if same else 1
    return 0
