"""The loop over steps: one experiment from its configuration to results.json, resumable at any moment."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tiss.config import RunConfig, from_mapping, to_mapping
from tiss.data.base import Dataset
from tiss.engine.environment import describe_environment
from tiss.engine.journal import RunJournal
from tiss.engine.learner import Learner
from tiss.engine.progress import Reporter, TerminalReporter
from tiss.engine.recipes import default_encoder, resolve
from tiss.engine.results import finished_steps, results_of, save_confusion, step_folder, write_results
from tiss.errors import TissError
from tiss.files import (
    atomic_folder,
    mark,
    read_json,
    read_tensors,
    recover,
    write_json,
    write_tensors,
    write_text,
)
from tiss.files.atomic import make_folder
from tiss.files.reading import read_yaml
from tiss.lock import Lease
from tiss.methods.base import METHODS, check_pair, settings_from
from tiss.models.model import SegmentationModel
from tiss.scenarios.scenario import Scenario, Step, load_scenario

# settings that may differ between the parts of one run: they change where and how fast, not what comes out
MACHINE = {
    "out": None,
    "train": (
        "device",
        "loader",
        "workers",
        "compile",
        "checkpointing",
        "shard",
        "save_every",
        "log_every",
        "tracker",
    ),
}


@dataclass(frozen=True)
class Run:
    """A run folder, opened: its configuration, its scenario and what has been scored."""

    folder: Path
    config: RunConfig
    scenario: Scenario

    @property
    def steps_done(self) -> int:
        return finished_steps(self.folder, len(self.scenario))

    def model(self, step: int = -1) -> SegmentationModel:
        """The model after `step` (negative from the last finished one)."""
        done = self.steps_done
        if not -done <= step < done:
            raise TissError(f"{self.folder}: no step {step}; finished steps: {done}")
        return SegmentationModel.from_pretrained(step_folder(self.folder, step % done))

    def results(self) -> dict[str, Any]:
        return results_of(self.folder, self.config, self.scenario)


def run_experiment(
    config: RunConfig, *, resume: bool = False, reporter: Reporter | None = None, steps: int | None = None
) -> dict[str, Any]:
    """Does one experiment and returns its results; with `resume`, goes on from the last checkpoint.

    `steps` stops after so many of the scenario's steps, to go on another time.
    """
    reporter = reporter or TerminalReporter()
    config, scenario = open_scenario(config)
    folder = Path(config.out or default_folder(config))
    check_folder(folder, config, resume)
    learner = Learner(config=config, reporter=reporter, folder=folder)
    world = learner.world
    world.wait()  # every process has looked at the folder before the first one writes into it
    with world.together(), _owned(folder, world.is_main):
        if world.is_main:
            recover(folder)
            for path in folder.glob("nonfinite-*.json"):  # of an attempt that this one replaces
                path.unlink()
            if not (folder / "config.yaml").exists():
                write_text(folder / "config.yaml", dump_config(config))
            left_out = getattr(scenario.dataset, "left_out", {})
            write_json(
                folder / "environment.json", {**describe_environment(world), "data_left_out": left_out}
            )
            for split, problems in left_out.items():
                if problems:
                    reporter.say(f"{split}: {len(problems)} faulty, left out; the first: {problems[0]}")
        world.wait()
        if config.train.tracker:
            world.accelerator.init_trackers("tiss", config={"configuration": dump_config(config)})
        journal = RunJournal(folder, world)
        for step in itertools.islice(scenario, steps):
            mark("between")
            if step.index < finished_steps(folder, len(scenario)):
                continue
            _take_over(learner, folder, step)
            seconds = None
            if step.index == 0 and config.base is not None:
                learner.model = load_base(Path(config.base), step, learner)
            else:
                seconds = learner.fit(step, journal)
            _finish_step(learner, folder, step, scenario, seconds)
        if config.train.tracker:
            world.accelerator.end_training()
        mark("between")
        results = (
            write_results(folder, config, scenario) if world.is_main else results_of(folder, config, scenario)
        )
        if world.is_main:
            shutil.rmtree(folder / "checkpoint", ignore_errors=True)
        world.wait()
    return results


def _take_over(learner: Learner, folder: Path, step: Step) -> None:
    """Before a later step in a fresh process: the last step's model, and what the method kept from it."""
    if step.index == 0 or learner.model is not None:
        return
    last = step_folder(folder, step.index - 1)
    learner.model = SegmentationModel.from_pretrained(last)
    learner.begin(step)
    _load_method_state(learner, last)


def _load_method_state(learner: Learner, folder: Path) -> None:
    """Gives the method back what it kept at the end of the step in `folder`."""
    assert learner.method is not None
    if (folder / "method.safetensors").exists():
        learner.method.load_state(read_tensors(folder / "method.safetensors"))


def _finish_step(
    learner: Learner, folder: Path, step: Step, scenario: Scenario, seconds: float | None
) -> None:
    """Tests the step's model, writes its folder whole, then the results."""
    assert learner.model is not None
    matrix = learner.confusion(step.test)
    mark("checkpoint")
    if learner.world.is_main:
        record = {"step": step.index, "eval_size": learner.config.eval.size, "scenario": str(scenario)}
        with atomic_folder(step_folder(folder, step.index)) as temporary:
            learner.model.save_pretrained(temporary, record)
            save_confusion(temporary, matrix)
            state = learner.method.state() if learner.method else {}
            if state:
                write_tensors(temporary / "method.safetensors", state)
        results = write_results(folder, learner.config, scenario)
        _write_timing(folder, step.index, seconds, learner.skipped)
        for split, ids in learner.skipped.items():
            if ids:
                learner.reporter.say(
                    f"step {step.index}: {len(ids)} {split} image(s) could not be read and were skipped, "
                    f"{ids[0]} the first; timing.json lists them"
                )
        scores = results["steps"][-1]["scores"]["all"]
        shown = (
            scores["with_background"]
            if scores["with_background"] is not None
            else scores["without_background"]
        )
        learner.reporter.say(
            f"step {step.index} · {learner.config.method.name}: +{', '.join(step.new_classes)} · mIoU {shown:.1f}"
        )
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    learner.world.wait()


def _write_timing(folder: Path, step: int, seconds: float | None, skipped: dict[str, list[str]]) -> None:
    path = folder / "timing.json"
    timing = read_json(path) if path.exists() else {}
    timing[f"step-{step}"] = {
        "train_seconds": None if seconds is None else round(seconds, 3),
        "skipped": {split: ids for split, ids in skipped.items() if ids},
    }
    write_json(path, timing)


def load_base(source: Path, step: Step, learner: Learner) -> SegmentationModel:
    """The step-0 model of another run, checked to fit this one."""
    folder = source / "step-0" if (source / "step-0").is_dir() else source
    model = SegmentationModel.from_pretrained(folder)
    expected = ["background", *step.new_classes]
    if model.classes != expected:
        raise TissError(
            f"--base {source}: its classes are {', '.join(model.classes)}, not {', '.join(expected)}"
        )
    wanted = learner.config.model
    if (model.architecture.encoder, model.architecture.decoder) != (wanted.encoder, wanted.decoder):
        raise TissError(
            f"--base {source}: it is {model.architecture.encoder} with {model.architecture.decoder}, "
            f"not {wanted.encoder} with {wanted.decoder}"
        )
    learner.model = model
    learner.begin(step)
    assert learner.method is not None
    if learner.method.head not in (None, model.architecture.head):
        raise TissError(
            f"--base {source}: its head is {model.architecture.head}, --method {learner.method.name} needs "
            f"{learner.method.head}"
        )
    learner.method.begin(step, model, learner.config.seed)
    _load_method_state(learner, folder)
    return model


def open_scenario(config: RunConfig, dataset: Dataset | None = None) -> tuple[RunConfig, Scenario]:
    """The scenario that a configuration asks for, and the configuration with every open setting answered."""
    encoder = config.model.encoder or default_encoder(config)
    check_pair(config.method, replace(config.model, encoder=encoder))
    scenario = load_scenario(
        config.data.name,
        root=config.data.root,
        task=config.task,
        setup=config.setup,
        protocol=config.protocol,
        order=config.order,
        lists=config.lists,
        holdout=config.holdout,
        dataset=dataset,
        on_error=config.data.on_error,
    )
    config = resolve(config, scenario.dataset)
    if METHODS.get(config.method.name).joint:
        scenario = scenario.joint()
    return config, scenario


def load_run(folder: str | Path, root: str | None = None) -> Run:
    """Opens a run folder; `root` says where the data lie now, if they have moved."""
    folder = Path(folder)
    config = read_config(folder)
    if root is not None:
        config = replace(config, data=replace(config.data, root=root))
    config, scenario = open_scenario(config)
    return Run(folder, config, scenario)


def read_config(folder: Path) -> RunConfig:
    """The configuration of a run folder."""
    path = folder / "config.yaml"
    if not path.exists():
        raise TissError(f"{folder} is no run folder: it has no config.yaml")
    config = from_mapping(RunConfig, read_yaml(path))
    return replace(config, method=settings_from(config.method))


def dump_config(config: RunConfig) -> str:
    return yaml.safe_dump(to_mapping(config), sort_keys=False, allow_unicode=True)


def default_folder(config: RunConfig) -> Path:
    return Path("runs") / run_name(config)


def run_name(config: RunConfig) -> str:
    """<data>-<task>-<setup>-<method>-seed<seed>, with only letters that any file system takes."""
    task = config.task if isinstance(config.task, str) else "groups"
    name = f"{config.data.name}-{task}-{config.setup}-{config.method.name}-seed{config.seed}"
    return "".join(letter if letter.isalnum() or letter in "-+._" else "_" for letter in name)


def check_folder(folder: Path, config: RunConfig, resume: bool) -> None:
    """Refuses a folder that holds something else than this very run, waiting to be resumed."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / "config.yaml").exists():
        if {path.name for path in folder.iterdir() if not path.name.startswith(".")} <= {"lock"}:
            return
        raise TissError(f"--out {folder} is not empty and no run folder: choose another")
    there, here = to_mapping(read_config(folder)), to_mapping(config)
    different = _differences(there, here)
    if different:
        raise TissError(
            f"--out {folder} holds another run (other {', '.join(different)}): choose another folder"
        )
    if not resume:
        raise TissError(
            f"--out {folder} holds this run already: add --resume to go on, or choose another folder"
        )


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    found = []
    for key in sorted(set(there) | set(here)):
        one, two = there.get(key), here.get(key)
        if key in MACHINE:
            skipped = MACHINE[key]
            if skipped is None:
                continue
            one = {k: v for k, v in (one or {}).items() if k not in skipped}
            two = {k: v for k, v in (two or {}).items() if k not in skipped}
        if isinstance(one, dict) and isinstance(two, dict):
            found += [f"{key}.{k}" for k in sorted(set(one) | set(two)) if one.get(k) != two.get(k)]
        elif one != two:
            found.append(key)
    return found


@contextlib.contextmanager
def _owned(folder: Path, is_main: bool) -> Iterator[None]:
    """Holds the run folder against a second run; only the first process takes the lease.

    A mistake that shows before anything was learnt leaves no folder behind.
    """
    if not is_main:
        yield
        return
    fresh = not folder.exists()
    make_folder(folder)
    with Lease(folder / "lock"):  # the folder is only ours to remove while we hold it
        try:
            yield
        except TissError:
            if fresh and not any(
                next(folder.glob(name), None) for name in ("step-0", "checkpoint", "nonfinite-*")
            ):
                shutil.rmtree(folder, ignore_errors=True)
            raise
