"""`tiss run` and `tiss eval`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tiss.cli import flags as cli
from tiss.cli.flags import Flag, flags_of, read_yaml
from tiss.config import REQUIRED, RunConfig, from_mapping, merge, setting
from tiss.errors import TissError


@dataclass(frozen=True)
class Options:
    """What is no part of the configuration."""

    config: str | None = setting(None, "YAML file with any of these options; flags on the command line win")
    steps: int | None = setting(None, "stop after this many steps; --resume continues later")
    allow_pickle: bool = setting(False, "the same as --model.allow_pickle")
    resume: bool = setting(False, "resume from the last checkpoint of the run in --out")
    print_config: bool = setting(False, "print the complete configuration as YAML and stop")

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise TissError(f"{self.steps}: give a whole number from 1 on", setting="steps")


def main(words: list[str]) -> int:
    """One experiment: a data set is split into steps, a method learns them one after another, every step is tested.
    Without options it runs the built-in data set `shapes` with TISS. Every option can also be in a YAML file, where a
    dot is a level. Options without a default follow from the recipe, the data set or the encoder: --print_config shows
    them. The recipe is `tuned` for weights that are trained already and `demo` from scratch. `paper`, SGD at 1e-2
    without warm-up, can break pretrained weights (it did with DINOv2's). With --method NAME, this help shows the
    method's settings as well. The same command with --resume resumes a run that was stopped at any moment.

    Examples:
      tiss run --method mib --task 4-2
      tiss run --data voc --data.root VOCdevkit --task 15-1 --model.pretrained default
      tiss run --data folder --data.root mine --task "car,person/bicycle" --method mib --method.distillation 20
      torchrun --nproc-per-node 8 -m tiss run --config voc-15-1.yaml
    """
    method = method_name(words)
    own = list(flags_of(Options))
    flags = [*own, *run_flags(method)]
    if cli.wants_help(words):
        print(cli.help_text("run", str(main.__doc__), flags))
        return 0
    with cli.settings_as_flags(flags):
        values = cli.parse_flags("run", words, flags)
        given = {flag.path: values.pop(flag.path) for flag in own if flag.path in values}
        options = from_mapping(Options, given)
        if options.allow_pickle:
            cli.set_path(values, "model.allow_pickle", True)
        return run(options, config_from(values, options.config))


def run(options: Options, config: RunConfig) -> int:
    from tiss.engine.run import open_run
    from tiss.engine.run_folder import dump_config
    from tiss.report.render import print_results

    found = open_run(config)
    if options.print_config:
        print(dump_config(found.config), end="")
        return 0
    results = found.execute(resume=options.resume, steps=options.steps)
    if cli.is_first_process():
        print_results([results])
        print(f"run folder: {found.folder}")
    return 0


def config_from(values: dict[str, Any], path: str | None) -> RunConfig:
    """A configuration from parsed flags, which win over the file at `path`."""
    from tiss.methods.base import settings_from

    config = from_mapping(RunConfig, merge(read_yaml(path), values) if path else values)
    return replace(config, method=settings_from(config.method))


def run_flags(method: str | None) -> list[Flag]:
    """All flags of a run; those of `method` follow --method."""
    flags = list(flags_of(RunConfig))
    if method is not None:
        from tiss.methods.base import METHODS

        place = [flag.path for flag in flags].index("method") + 1
        flags[place:place] = flags_of(METHODS.get(method).Settings, "method")
    return flags


def method_name(words: Sequence[str]) -> str | None:
    """The method that the flags or their file name, which decides about --method.*; for a help text None will do."""
    found, path = _value_of(words, "method"), _value_of(words, "config")
    if found is None and path is not None:
        method = read_yaml(path).get("method")
        found = method.get("name") if isinstance(method, dict) else method
    return str(found) if found else None if cli.wants_help(words) else str(RunConfig().method)


def _value_of(words: Sequence[str], name: str) -> str | None:
    value = None
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word.partition("=")[0] == f"--{name}":
            value = word.partition("=")[2] if "=" in word else following
    return value


@dataclass(frozen=True)
class EvalOptions:
    run: str = setting(REQUIRED, "run folder", positional=True)
    step: int = setting(-1, "the step whose model is tested; negative counts from the last finished one")
    mode: Literal["crop", "slide"] | None = setting(None, "crop or slide (None: as in the run)")
    root: str | None = setting(None, "where the data are now, if they have moved", sets="data.root")
    json: bool = setting(False, "print the scores as JSON")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")


def evaluate(options: EvalOptions) -> int:
    """Tests the model of a finished step of a run again, with the run's own settings, and compares with what the run
    wrote: the same figures to the last digit on the same machine. --mode slide tests whole images instead.

    Examples:
      tiss eval runs/shapes-4-2-overlapped-tiss-seed0
      tiss eval runs/voc-15-1-overlapped-mib-seed0 --step 2 --mode slide --root VOCdevkit
    """
    import torch

    from tiss.engine.run import load_run
    from tiss.engine.session import Learner
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
    scenario = run.scenario
    groups = scenario.groups if len(scenario) == 1 else scenario.groups[: step + 1]
    classes, background = scenario.classes[: len(model.classes)], scenario.dataset.has_background
    scores = scores_from_confusion(matrix, classes, groups, has_background=background)
    print(json.dumps(scores.to_json(), indent=2) if options.json else scores)
    if evaluation != run.config.eval:
        return 0
    same = torch.equal(matrix.cpu(), run.files.step(step).confusion())
    print(f"{'the same' if same else 'not the same'} as when it was trained, pixel by pixel")
    return 0 if same else 1
