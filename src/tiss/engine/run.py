"""One experiment: a loop over steps, from a configuration to results.json. It can be resumed at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tiss.config import RunConfig
from tiss.data.base import Dataset
from tiss.engine.checkpoint import read_position
from tiss.engine.device import World
from tiss.engine.progress import Reporter, TerminalReporter
from tiss.engine.recipes import default_encoder, resolve
from tiss.engine.results import results_of, write_results
from tiss.engine.run_folder import Journal, RunFolder, describe_environment, dump_config, run_name
from tiss.engine.session import Session, base_folder, load_base
from tiss.errors import SpaceError, TissError
from tiss.files import read_json, reserve, write_json
from tiss.methods.base import METHODS, check_pair
from tiss.models import SegmentationModel
from tiss.scenarios.scenario import Scenario, Step, load_scenario


@dataclass(frozen=True)
class Run:
    """An experiment with every setting resolved: where it is written, what it does, its steps."""

    folder: Path
    config: RunConfig
    scenario: Scenario

    @property
    def files(self) -> RunFolder:
        return RunFolder(self.folder)

    @property
    def steps_done(self) -> int:
        return self.files.finished_steps(len(self.scenario))

    def model(self, step: int = -1) -> SegmentationModel:
        """The model after `step` (negative from the last finished one)."""
        done = self.steps_done
        if not -done <= step < done:
            raise TissError(f"{self.folder}: no step {step}; finished steps: {done}")
        return self.files.step(step % done).model()

    def results(self) -> dict[str, Any]:
        return results_of(self.files, self.config, self.scenario)

    def execute(
        self, *, resume: bool = False, steps: int | None = None, reporter: Reporter | None = None
    ) -> dict[str, Any]:
        """Trains and tests every step that is not done yet; `steps` stops after the first so many."""
        config, world = self.config, World(self.config.train, self.folder)
        reporter = (reporter or TerminalReporter()) if world.is_main else Reporter()
        session: Session | None = None
        with world.failures_explained(), self.files.opened(config, world, resume) as journal:
            if world.is_main:
                note_environment(self, world, reporter)
            if config.train.tracker:
                world.accelerator.init_trackers("tiss", config={"configuration": dump_config(config)})
            for step in list(self.scenario)[self.steps_done : steps]:
                with resumable(self.files, step):
                    session = session or start_session(self, step, world, reporter)
                    do_step(self, session, step, journal)
            if config.train.tracker:
                world.accelerator.end_training()
            if world.is_main:
                write_results(self.files, config, self.scenario)
                self.files.remove_checkpoint()
            world.wait()
        return self.results()


def run_experiment(
    config: RunConfig,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
    steps: int | None = None,
    dataset: Dataset | None = None,
) -> dict[str, Any]:
    """Does one experiment and returns its results; with `resume`, continues from the last checkpoint.

    `steps` stops after the first so many steps, to resume another time. `dataset` is the one that `config` names,
    where it is open already.
    """
    return open_run(config, dataset).execute(resume=resume, steps=steps, reporter=reporter)


def open_run(config: RunConfig, dataset: Dataset | None = None) -> Run:
    """The run that a configuration asks for, every setting resolved; nothing is written yet."""
    # method and model are checked against each other before any weight or image is read
    check_pair(config.method, replace(config.model, encoder=default_encoder(config)))
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
    folder = Path(config.out) if config.out else Path("runs") / run_name(config)
    return Run(folder, config, scenario)


def load_run(folder: str | Path, root: str | None = None) -> Run:
    """Opens a run folder; `root` is where the data are now, if they have moved."""
    config = RunFolder(Path(folder)).config()
    if root is not None:
        config = replace(config, data=replace(config.data, root=root))
    return replace(open_run(config), folder=Path(folder))


def start_session(run: Run, step: Step, world: World, reporter: Reporter) -> Session:
    """The session that does `step`: a new model, one from another run, or that of the step before."""
    if step.index > 0:
        last = run.files.step(step.index - 1)
        return Session.start(
            run.config, step, model=last.model(), state=last.method_state(), world=world, reporter=reporter
        )
    model = load_base(run.config.base, step, run.config) if run.config.base else None
    return Session.start(run.config, step, model=model, world=world, reporter=reporter)


def do_step(run: Run, session: Session, step: Step, journal: Journal) -> None:
    """Trains a step, or adopts the first one from `base`; then tests and stores it, in space reserved before."""
    space = reserve(run.folder, session.size_after(step)) if session.world.is_main else nullcontext()
    with space:
        seconds = None
        if step.index == 0 and run.config.base:
            session.adopt(step, base_folder(run.config.base))
        else:
            seconds = session.learn(step, journal)
        matrix = session.confusion(step.test)
    if session.world.is_main:
        store_step(run, session, step, matrix, seconds)
    session.world.wait()


def store_step(run: Run, session: Session, step: Step, matrix: Tensor, seconds: float | None) -> None:
    """Writes the step's folder whole, then the results; only then its checkpoint is removed."""
    method = session.config.method.name
    record = {
        "step": step.index,
        "method": method,
        "eval_size": session.config.eval.size,
        "scenario": str(run.scenario),
    }
    with run.files.step(step.index).writing(session.model, session.method.state(), matrix, record):
        pass
    results = write_results(run.files, run.config, run.scenario)
    path = run.folder / "timing.json"
    timing = read_json(path) if path.exists() else {}
    timing[f"step-{step.index}"] = {
        "train_seconds": None if seconds is None else round(seconds, 3),
        "skipped": {split: ids for split, ids in session.skipped.items() if ids},
    }
    write_json(path, timing)
    for split, ids in session.skipped.items():
        if ids:
            session.reporter.say(
                f"step {step.index}: {len(ids)} {split} image(s) could not be read and were skipped, "
                f"{ids[0]} the first; timing.json lists them"
            )
    means = results["steps"][-1]["scores"]["all"]
    shown = means["with_background"] if means["with_background"] is not None else means["without_background"]
    session.reporter.say(f"step {step.index} · {method}: +{', '.join(step.new_classes)} · mIoU {shown:.1f}")
    run.files.remove_checkpoint()


def note_environment(run: Run, world: World, reporter: Reporter) -> None:
    """Writes environment.json, and says which images were left out as faulty."""
    left_out = run.scenario.dataset.left_out
    write_json(
        run.folder / "environment.json", {**describe_environment(world), "data_left_out": dict(left_out)}
    )
    for split, problems in left_out.items():
        if problems:
            reporter.say(f"{split}: {len(problems)} faulty, left out; the first: {problems[0]}")


@contextmanager
def resumable(files: RunFolder, step: Step) -> Iterator[None]:
    """Where the disk is full, says from where the run will resume."""
    try:
        yield
    except SpaceError as error:
        found = read_position(files.checkpoint)
        at = found.iteration if found is not None and found.step == step.index else 0
        raise SpaceError(f"{error}: from update {at} of step {step.index}") from error
