"""`tiss run`: one experiment."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from tiss.cli.flags import Flag, flags_of, help_text, parse_flags, read_yaml, set_path
from tiss.config import RunConfig, convert, from_mapping, merge
from tiss.errors import TissError

USAGE = "tiss run [--config FILE.yaml] [options]"
ABOUT = """
One experiment: a data set is cut into steps, a method learns them one after another, every step is tested.
With no option at all it runs the embedded data set `shapes` with TISS. Every option can stand in a YAML file;
a dot is a level there. Empty defaults follow from the recipe, the data set or the encoder: --print_config shows
what they come to. The recipe is `demo` for shapes and `paper` elsewhere: SGD at 1e-2 without warm-up, which can
break pretrained weights (it did with DINOv2's). With such weights take --train.recipe tuned.
Stopped at any moment, the same command with --resume goes on.
"""
EXAMPLES = """
tiss run --method mib --task 4-2
tiss run --data voc --data.root VOCdevkit --task 15-1 --method recall --model.pretrained default --train.recipe tuned
tiss run --data folder --data.root mine --task "car,person/bicycle" --method mib --method.distillation 20
torchrun --nproc-per-node 8 -m tiss run --config voc-15-1.yaml
"""
SWITCHES = {
    "allow_pickle": "also read .pth files with --model.pretrained, weights only; safetensors need no such trust",
    "resume": "go on from the last checkpoint of the run in --out",
    "print_config": "print the complete configuration as YAML and stop",
    "help": "this text, with the settings of the --method that is given beside it",
}
CONFIG = Flag("config", str, None, "YAML file with any of these options; flags on the command line win")
STEPS = Flag("steps", int, None, "stop after so many steps; --resume goes on later")


def main(arguments: list[str]) -> int:
    """Runs the command."""
    name = method_name(arguments)
    flags = [CONFIG, STEPS, *run_flags(name)]
    values, given, _ = parse_flags(arguments, flags, SWITCHES)
    if "help" in given:
        print(help_text(USAGE, ABOUT, flags, SWITCHES, EXAMPLES))
        return 0
    if "allow_pickle" in given:
        set_path(values, "model.allow_pickle", True)
    steps = convert(values.pop("steps", None), int | None, "steps")
    if steps is not None and steps < 1:
        raise TissError(f"--steps {steps}: give a whole number from 1 on")
    config = config_from(values)
    from tiss.engine.run import open_scenario, run_experiment
    from tiss.engine.run_folder import default_folder, dump_config

    if "print_config" in given:
        complete, _ = open_scenario(config)
        print(dump_config(complete), end="")
        return 0
    results = run_experiment(config, resume="resume" in given, steps=steps)
    if os.environ.get("RANK", "0") != "0":
        return 0  # one of several processes: the first one prints
    from tiss.report.tables import print_results

    print_results([results])
    complete, _ = open_scenario(config)
    print(f"run folder: {complete.out or default_folder(complete)}")
    return 0


def config_from(values: dict[str, Any]) -> RunConfig:
    """A configuration from parsed flags, laid over the file that --config names."""
    values = dict(values)
    path = values.pop("config", None)
    mapping = merge(read_yaml(path), values) if path else values
    from tiss.methods.base import settings_from

    config = from_mapping(RunConfig, mapping)
    return dataclasses.replace(config, method=settings_from(config.method))


def run_flags(method: str) -> list[Flag]:
    """All flags of a run; the method's own settings stand behind --method."""
    from tiss.methods.base import METHODS

    flags = []
    for flag in flags_of(RunConfig):
        flags.append(flag)
        if flag.path == "method":
            flags += list(flags_of(METHODS.get(method).Settings, "method"))
    return flags


def method_name(arguments: list[str]) -> str:
    """The method that the flags or their configuration file name: it decides which --method.* there are."""
    found = _value_of(arguments, "method")
    path = _value_of(arguments, "config")
    if found is None and path is not None:
        method = read_yaml(path).get("method")
        found = method.get("name") if isinstance(method, dict) else method
    return str(found or RunConfig().method)


def _value_of(arguments: list[str], name: str) -> str | None:
    value = None
    for index, word in enumerate(arguments):
        if word == f"--{name}":
            if index + 1 == len(arguments):
                raise TissError(f"--{name} needs a value")
            value = arguments[index + 1]
        elif word.startswith(f"--{name}="):
            value = word.partition("=")[2]
    return value
