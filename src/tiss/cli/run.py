"""One experiment: a data set is split into steps, a method learns them one after another, every step is tested.
Without options it runs the built-in data set `shapes` with TISS. Every option can also be in a YAML file, where a dot
is a level. Options without a default follow from the recipe, the data set or the encoder: --print_config shows them.
The recipe is `demo` for shapes and `paper` elsewhere: SGD at 1e-2 without warm-up, which can break pretrained weights
(it did with DINOv2's). With such weights use --train.recipe tuned. With --method NAME, this help shows the method's
settings as well. The same command with --resume resumes a run that was stopped at any moment.

Examples:
  tiss run --method mib --task 4-2
  tiss run --data voc --data.root VOCdevkit --task 15-1 --method recall --model.pretrained default --train.recipe tuned
  tiss run --data folder --data.root mine --task "car,person/bicycle" --method mib --method.distillation 20
  torchrun --nproc-per-node 8 -m tiss run --config voc-15-1.yaml
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiss.cli.flags import (
    Flag,
    flags_of,
    help_text,
    parse_flags,
    read_yaml,
    set_path,
    settings_as_flags,
    wants_help,
)
from tiss.config import RunConfig, from_mapping, merge, setting
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
    """Runs the command."""
    method = method_name(words)
    own = list(flags_of(Options))
    flags = [*own, *run_flags(method)]
    if wants_help(words):
        print(help_text("run", __doc__, flags))
        return 0
    with settings_as_flags(flags):
        values = parse_flags("run", words, flags)
        options = from_mapping(
            Options, {flag.path: values.pop(flag.path) for flag in own if flag.path in values}
        )
        if options.allow_pickle:
            set_path(values, "model.allow_pickle", True)
        return run(options, config_from(values, options.config))


def run(options: Options, config: RunConfig) -> int:
    from tiss.engine.run import open_run
    from tiss.engine.run_folder import dump_config

    found = open_run(config)
    if options.print_config:
        print(dump_config(found.config), end="")
        return 0
    results = found.execute(resume=options.resume, steps=options.steps)
    if os.environ.get("RANK", "0") != "0":
        return 0  # one of several processes: the first one prints
    from tiss.report.render import print_results

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
    flags = []
    for flag in flags_of(RunConfig):
        flags.append(flag)
        if flag.path == "method" and method is not None:
            from tiss.methods.base import METHODS

            flags += flags_of(METHODS.get(method).Settings, "method")
    return flags


def method_name(words: Sequence[str]) -> str | None:
    """The method that the flags or their file name, which decides about --method.*; for a help text None will do."""
    found, path = _value_of(words, "method"), _value_of(words, "config")
    if found is None and path is not None:
        method = read_yaml(path).get("method")
        found = method.get("name") if isinstance(method, dict) else method
    return str(found) if found else None if wants_help(words) else str(RunConfig().method)


def _value_of(words: Sequence[str], name: str) -> str | None:
    value = None
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word.startswith(f"--{name}="):
            value = word.partition("=")[2]
        elif word == f"--{name}":
            value = following
    return value
