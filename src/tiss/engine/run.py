"""One experiment: a loop over steps, from a configuration to results.json. It can be resumed at any moment."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tiss import __version__
from tiss.config import RunConfig
from tiss.data.base import Dataset
from tiss.engine.checkpoint import Journal, read_position
from tiss.engine.device import World, computes_bf16
from tiss.engine.features import FeatureCache
from tiss.engine.progress import Reporter, TerminalReporter
from tiss.engine.recipes import default_encoder, resolve
from tiss.engine.results import FORMAT
from tiss.engine.run_folder import (
    RunFolder,
    describe_environment,
    dump_config,
    read_config,
    run_name,
    variant_of,
)
from tiss.engine.session import Session, base_folder, load_base
from tiss.errors import SpaceError, TissError, listed
from tiss.evaluation.scores import background_falls, run_scores
from tiss.files import read_json, reserve, write_json
from tiss.methods.base import METHODS, check_pair
from tiss.models import SegmentationModel
from tiss.scenarios import Scenario, Step, load_scenario


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
        """The scores of every finished step, as written to results.json."""
        config, scenario, done = self.config, self.scenario, self.steps_done
        has_background = scenario.dataset.has_background
        matrices = [self.files.step(index).confusion() for index in range(done)]
        scored = run_scores(matrices, scenario.classes, scenario.groups, has_background=has_background)
        for entry, step in zip(scored["steps"], scenario, strict=False):
            entry["train_images"], entry["test_images"] = len(step.train), len(step.test)
            if scenario.memory:
                entry["memory"] = list(step.memory)
        return {
            "format": FORMAT,
            "tiss": __version__,
            "data": config.data.name,
            "task": config.task,
            "setup": config.setup,
            "protocol": config.protocol.name,
            "holdout": config.holdout,
            **{key: value for key, value in variant_of(config).items() if value is not None},
            "memory": scenario.memory,
            "method": config.method.name,
            "encoder": config.model.encoder,
            "decoder": config.model.decoder,
            "seed": config.seed,
            "finished": done == len(scenario),
            "classes": list(scenario.classes),
            "has_background": has_background,
            "groups": [list(group) for group in scenario.groups],
            **scored,
        }

    def execute(
        self,
        *,
        resume: bool = False,
        steps: int | None = None,
        reporter: Reporter | None = None,
        features: FeatureCache | None = None,
    ) -> dict[str, Any]:
        """Trains and tests every step that is not done yet; `steps` stops after the first so many.

        `features` are those that a grid's runs share.
        """
        config, files, world = self.config, self.files, World(self.config.train, self.folder)
        reporter = (reporter or TerminalReporter()) if world.is_main else Reporter()
        session: Session | None = None
        with world.failures_explained(), files.opened(config, world, resume) as journal, ExitStack() as stack:
            bf16 = computes_bf16(config.train)
            if not config.train.keep_features:
                features = None
            elif features is None or features.bf16 != bf16:
                own = FeatureCache.kept_in(self.folder / "features", bf16, world)
                features = stack.enter_context(own)
            elif world.is_main:  # what was left when this run was stopped without a grid
                shutil.rmtree(self.folder / "features", ignore_errors=True)
            if world.is_main:
                self.note_environment(world, reporter, features)
            if config.train.tracker:
                world.accelerator.init_trackers("tiss", config={"configuration": dump_config(config)})
            for step in list(self.scenario)[self.steps_done : steps]:
                with resumable(files.checkpoint, step):
                    session = session or self.start_session(step, world, reporter, features)
                    self.do_step(session, step, journal)
            if config.train.tracker:
                world.accelerator.end_training()
            stack.close()  # a run with results is never opened again to remove features
            if world.is_main:
                write_json(self.folder / "results.json", self.results())
                files.remove_checkpoint()
            world.wait()
        return self.results()

    def note_environment(self, world: World, reporter: Reporter, features: FeatureCache | None) -> None:
        """Writes environment.json, and says which images were left out as faulty."""
        left_out = self.scenario.dataset.left_out
        environment = {**describe_environment(world), "data_left_out": dict(left_out)}
        if features:
            half = features.bf16 if world.device.type == "cpu" else world.autocast_bf16
            environment["features"] = "bf16" if half else "float32"
        write_json(self.folder / "environment.json", environment)
        for split, problems in left_out.items():
            if problems:
                reporter.say(f"{split}: {len(problems)} faulty, left out; the first: {problems[0]}")

    def start_session(
        self, step: Step, world: World, reporter: Reporter, features: FeatureCache | None
    ) -> Session:
        """The session that does `step`: a new model, one from another run, or that of the step before."""
        model, state, config = None, None, self.config
        if step.index > 0:
            last = self.files.step(step.index - 1)
            model, state = last.model(), last.method_state()
        elif config.base:
            model = load_base(config.base, step, config)
        return Session.start(
            config, step, model=model, state=state, world=world, reporter=reporter, features=features
        )

    def do_step(self, session: Session, step: Step, journal: Journal) -> None:
        """Trains a step, or adopts the first one from `base`; then tests and stores it, in space reserved before."""
        is_main, seconds = session.world.is_main, None
        with reserve(self.folder, session.size_after(step)) if is_main else nullcontext():
            if step.index == 0 and self.config.base:
                session.adopt(step, base_folder(self.config.base))
            else:
                seconds = session.learn(step, journal)
            matrix = session.confusion(step.test)
        if is_main:
            self.store_step(session, step, matrix, seconds)
        session.world.wait()

    def store_step(self, session: Session, step: Step, matrix: Tensor, seconds: float | None) -> None:
        """Writes the step's folder whole, then the results; only then its checkpoint is removed."""
        record = {"step": step.index, "method": self.config.method.name, "eval_size": self.config.eval.size}
        record["scenario"] = str(self.scenario)
        with self.files.step(step.index).writing(session.model, session.method.state(), matrix, record):
            pass
        path = self.folder / "timing.json"
        timing = read_timing(path)
        seconds = None if seconds is None else round(seconds, 3)
        timing[f"step-{step.index}"] = {"train_seconds": seconds}
        write_json(path, timing)
        results = self.results()
        write_json(self.folder / "results.json", results)
        means = results["steps"][-1]["scores"]["all"]
        shown = next(value for value in means.values() if value is not None)
        session.reporter.say(
            f"step {step.index} · {self.config.method.name}: +{listed(step.new_classes)} · mIoU {shown:.1f}"
        )
        ious = [entry["iou"]["background"] for entry in results["steps"]]
        if step.index in background_falls(ious):
            change = f"{ious[-2]:.1f} → {ious[-1]:.1f}"
            session.reporter.say(f"warning: the background's IoU fell in this step: {change}")
        self.files.remove_checkpoint()


def read_timing(path: Path) -> dict[str, Any]:
    """The seconds so far; a damaged file is begun again: it is no reason to lose a step."""
    with suppress(TissError):
        found = read_json(path)
        return found if isinstance(found, dict) else {}
    return {}


@contextmanager
def resumable(checkpoint: Path, step: Step) -> Iterator[None]:
    """Where the disk is full, says from where the run will resume."""
    try:
        yield
    except SpaceError as error:
        found = read_position(checkpoint)
        at = found.iteration if found is not None and found.step == step.index else 0
        raise SpaceError(f"{error}: from update {at} of step {step.index}") from error


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
    names = ("task", "setup", "protocol", "order", "lists", "holdout")
    scenario = load_scenario(
        config.data.name,
        root=config.data.root,
        dataset=dataset,
        on_error=config.data.on_error,
        eval_images=config.eval.images,
        **{name: getattr(config, name) for name in names},
    )
    config = resolve(config, scenario.dataset)
    if scenario.domains and not METHODS.get(config.method.name).domains:
        fitting = ", ".join(name for name in METHODS if METHODS.get(name).domains)
        raise TissError(
            f"{config.method.name} needs new classes in every step; take {fitting}", setting="method"
        )
    if config.memory and METHODS.get(config.method.name).solved:
        problem = f"{config.memory}: {config.method.name} keeps sums over all earlier images: give 0"
        raise TissError(problem, setting="memory")
    if METHODS.get(config.method.name).joint:
        scenario = scenario.joint()
    else:
        scenario = scenario.with_memory(config.memory, config.seed)
    folder = Path(config.out) if config.out else Path("runs") / run_name(config)
    return Run(folder, config, scenario)


def load_run(folder: str | Path, root: str | None = None) -> Run:
    """Opens a run folder; `root` is where the data are now, if they have moved."""
    config = read_config(Path(folder))
    if root is not None:
        config = replace(config, data=replace(config.data, root=root))
    return replace(open_run(config), folder=Path(folder))
