"""The loop over steps: one experiment from its configuration to results.json, resumable at any moment."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tiss.config import RunConfig
from tiss.data.base import Dataset
from tiss.engine.checkpoint import read_position
from tiss.engine.environment import describe_environment
from tiss.engine.journal import RunJournal
from tiss.engine.learner import Learner
from tiss.engine.progress import Reporter, TerminalReporter
from tiss.engine.recipes import default_encoder, resolve
from tiss.engine.results import finished_steps, results_of, save_confusion, step_folder, write_results
from tiss.engine.run_folder import check_folder, default_folder, dump_config, owned, read_config
from tiss.errors import SpaceError, TissError
from tiss.files import (
    atomic_folder,
    mark,
    read_json,
    read_tensors,
    recover,
    reserve,
    write_json,
    write_tensors,
    write_text,
)
from tiss.methods.base import METHODS, Method, check_pair
from tiss.models.model import SegmentationModel
from tiss.scenarios.scenario import Scenario, Step, load_scenario


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
    config: RunConfig,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
    steps: int | None = None,
    scenario: Scenario | None = None,
) -> dict[str, Any]:
    """Does one experiment and returns its results; with `resume`, goes on from the last checkpoint.

    `steps` stops after so many of the scenario's steps, to go on another time. `scenario` is the one that
    `config` asks for, where it is open already.
    """
    reporter = reporter or TerminalReporter()
    if scenario is None:
        _, scenario = open_scenario(config)
    config = resolve(config, scenario.dataset)
    folder = Path(config.out or default_folder(config))
    check_folder(folder, config, resume)
    learner = Learner(config=config, reporter=reporter, folder=folder)
    world = learner.world
    world.wait()  # every process has looked at the folder before the first one writes into it
    with world.together(), owned(folder, world.is_main) as lease:
        if world.is_main:
            recover(folder)
            if resume and not (folder / "config.yaml").exists():
                reporter.say(f"nothing to go on with in {folder}: the run starts anew")
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
        journal = RunJournal(folder, world, lease)
        for step in itertools.islice(scenario, steps):
            mark("between")
            if step.index < finished_steps(folder, len(scenario)):
                continue
            _take_over(learner, folder, step)
            with _going_on(folder, step):
                _do_step(learner, folder, step, scenario, journal)
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


def _do_step(learner: Learner, folder: Path, step: Step, scenario: Scenario, journal: RunJournal) -> None:
    """Learns a step, or takes the first one over from --base; then tests and stores it, in room held from the start."""
    base = learner.config.base if step.index == 0 else None
    if base is None:
        learner.begin(step)
    else:
        learner.model = load_base(Path(base), step, learner)
    with reserve(folder, learner.room(step)) if learner.world.is_main else nullcontext():
        seconds = learner.fit(step, journal) if base is None else None
        matrix = learner.confusion(step.test)
    _store_step(learner, folder, step, scenario, matrix, seconds)


@contextmanager
def _going_on(folder: Path, step: Step) -> Iterator[None]:
    """Where the disk is full, says from where the run goes on when there is space again."""
    try:
        yield
    except SpaceError as error:
        found = read_position(folder / "checkpoint")
        if found is not None and found.step == step.index:
            raise SpaceError(
                f"{error}; it goes on from update {found.iteration} of step {step.index}"
            ) from error
        raise SpaceError(f"{error}; it goes on with the start of step {step.index}") from error


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


def _store_step(
    learner: Learner, folder: Path, step: Step, scenario: Scenario, matrix: Tensor, seconds: float | None
) -> None:
    """Writes the step's folder whole, then the results; only then its checkpoint goes."""
    assert learner.model is not None
    mark("checkpoint")
    if learner.world.is_main:
        record = {
            "step": step.index,
            "method": learner.config.method.name,
            "eval_size": learner.config.eval.size,
            "scenario": str(scenario),
        }
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
    if (folder / "method.safetensors").exists() and _related(model.record.get("method"), learner.method):
        _load_method_state(learner, folder)
    else:
        learner.look(step)
    return model


def _related(name: str | None, method: Method) -> bool:
    """Whether what a method of this name kept means something to `method`; folders made elsewhere have no name."""
    if name is None:
        return True
    return name in METHODS and METHODS.get(name).load_state is type(method).load_state


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
