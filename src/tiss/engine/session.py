"""A session: a model, a method and a machine, with every setting resolved. It trains and tests steps.

`Learner` is its public face.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiss.config import DataConfig, EvalConfig, RunConfig, TrainConfig, from_mapping, to_mapping
from tiss.data.augment import AugmentSettings
from tiss.data.base import Dataset
from tiss.data.loader import TestLoader, TrainLoader
from tiss.engine.checkpoint import Journal
from tiss.engine.device import World, make_fast
from tiss.engine.features import FeatureCache
from tiss.engine.loop import end_step, train_step
from tiss.engine.predictor import Prediction, Predictor
from tiss.engine.progress import Reporter, TerminalReporter
from tiss.engine.recipes import Plan, resolve
from tiss.engine.run_folder import StepFolder
from tiss.errors import TissError
from tiss.evaluation.evaluate import evaluate
from tiss.evaluation.scores import Scores, scores_from_confusion
from tiss.methods.base import METHODS, Method, build_method, check_pair
from tiss.models import SegmentationModel, build_model
from tiss.models import resolve as resolve_architecture
from tiss.randomness import epoch_order
from tiss.scenarios import Split, Step

VIEWS = 2  # random crops of an image where features are computed once: more did not help (docs/LOG.md)


@dataclass
class Session:
    """Model, method, configuration and device, from step to step."""

    config: RunConfig  # resolved, as `start` does it
    model: SegmentationModel
    method: Method
    world: World
    reporter: Reporter = field(default_factory=TerminalReporter)
    features: FeatureCache | None = None  # of steps that train nothing before the head
    _teacher: SegmentationModel | None = None

    def __post_init__(self) -> None:
        self.reporter = self.reporter if self.world.is_main else Reporter()

    @classmethod
    def start(
        cls,
        config: RunConfig,
        step: Step,
        *,
        model: SegmentationModel | None = None,
        state: Mapping[str, Tensor] | None = None,
        world: World | None = None,
        reporter: Reporter | None = None,
        features: FeatureCache | None = None,
    ) -> Session:
        """A session whose first step is `step`; `config` is resolved (see `resolve_for`).

        Without `model` a new one is built, for step 0. `state` is what the method kept after the step before.
        """
        world = world or World(config.train)
        world.share_of(Plan.of(config, step.index).batch, config.train.accumulate)
        method = build_method(config.method, step.steps)
        if model is None:
            if step.index > 0:
                before = step.index - 1
                raise TissError(f"step {step.index} needs the model of step {before}: fit the steps in order")
            names = ["background", *step.new_classes]
            model = build_model(config.model, names, config.data.crop, head=method.head, seed=config.seed)
        session = cls(config, model, method, world, reporter or TerminalReporter(), features)
        session.check(step)
        model.to(world.device)
        if state:
            method.load_state(state)
        return session

    def check(self, step: Step) -> None:
        """Refuses a step that does not follow from the model."""
        self.method.check(self.model)
        expected, known = step.old if step.index > 0 else step.seen, len(self.model.classes)
        if known != expected:
            raise TissError(f"step {step.index} starts from {expected} channels, the model has {known}")

    def learn(self, step: Step, journal: Journal | None = None) -> float:
        """Trains one step; returns the seconds of training."""
        self.check(step)
        teacher = self.make_teacher() if step.index > 0 and self.method.uses_teacher else None
        self.method.begin(step, self.model, self.config.seed)
        if self.config.train.encoder_lr == 0:  # spares its gradients
            self.model.encoder.requires_grad_(False)
        self.model.to(self.world.device)
        self.model.encoder.checkpointing = self.config.train.checkpointing
        make_fast(self.model, self.config.train, self.world)
        with self.world.failures_explained(), closing(self.train_loader(step)) as loader:
            seconds = train_step(self, step, teacher, loader, journal or Journal(self.world))
        self.model.requires_grad_(True)  # the next step has its own choice of what is frozen
        return seconds

    def solves(self, step: Step) -> bool:
        """Whether nothing is trained in the step: its head is solved, on features that are not trained either."""
        fixed = self.config.train.encoder_lr == 0 and not any(True for _ in self.model.decoder.parameters())
        return self.method.solved and (step.index > 0 or fixed)

    def fixed(self, step: Step) -> bool:
        """Whether the step, once begun, trains nothing before the head."""
        return self.solves(step) or not any(one.requires_grad for one in self.model.body.parameters())

    def looked_up(self, *models: SegmentationModel | None) -> AbstractContextManager[None]:
        """Meanwhile features of `models`, which are not trained, are computed once for each image."""
        return self.features.of(*models) if self.features else nullcontext()

    def adopt(self, step: Step, base: StepFolder) -> None:
        """Takes the model as the result of step 0; the method gets what it keeps from `base` or from the images.

        A method that solves its head always looks at the images: its sums depend on its settings.
        """
        self.method.begin(step, self.model, self.config.seed)
        state = base.method_state()
        made_by = self.model.record.get("method")  # folders made elsewhere do not say
        known = METHODS.get(str(made_by)).load_state if made_by in METHODS else None
        same = made_by is None or known is type(self.method).load_state
        if state and same and not self.method.solved:
            self.method.load_state(state)
        elif type(self.method).end is not Method.end:
            with self.world.failures_explained(), closing(self.train_loader(step)) as loader:
                end_step(self, step, loader)

    def confusion(self, split: Split, evaluation: EvalConfig | None = None) -> Tensor:
        """The confusion matrix of the model over `split`, exact over all processes."""
        how, world = evaluation or self.config.eval, self.world
        self.model.to(world.device).eval()
        size = how.size or Plan.of(self.config, 0).crop
        mode = how.mode or split.dataset.default_mode
        loader = TestLoader(split, size=size, mode=mode, batch=how.batch, **self.loading())
        # batches of a test differ in size, and a forward pass is short: nothing to compile there
        eager = torch.compiler.set_stance("force_eager")
        bar, seen = self.reporter.bar("test", len(split)), self.looked_up(self.model)
        with world.failures_explained(), closing(loader), bar as shown, world.autocast(), eager, seen:
            count = len(self.model.classes)
            return evaluate(self.model, loader, count, device=world.device, progress=shown.advance)

    def size_after(self, step: Step) -> int:
        """Bytes that the model after `step` will take in a folder, about."""
        weights = sum(tensor.nbytes for tensor in self.model.state_dict().values())
        kept = self.method.state_bytes(self.model, step.seen)
        return int(1.02 * (weights + kept)) + (64 << 10)  # new rows of the head, the matrix, small files

    def make_teacher(self) -> SegmentationModel:
        """The model as it is now, frozen. One teacher serves all steps, so that it is compiled once."""
        if self._teacher is None:
            self._teacher = freeze_copy(self.model)
            make_fast(self._teacher, self.config.train, self.world)
        else:
            self._teacher.body.load_state_dict(self.model.body.state_dict())
            self._teacher.head = copy.deepcopy(self.model.head).requires_grad_(False).eval()
            self._teacher.classes, self._teacher.groups = list(self.model.classes), list(self.model.groups)
        return self._teacher

    def train_loader(self, step: Step) -> TrainLoader:
        data, train, plan = self.config.data, self.config.train, Plan.of(self.config, step.index)
        settings = AugmentSettings(plan.crop, data.resize, plan.scale, data.flip, data.photometric)
        return TrainLoader(
            step.train,
            settings,
            batch=plan.batch,
            seed=self.config.seed,
            # what is solved must not depend on the order of the steps: nor do then its crops
            step=0 if self.solves(step) else step.index,
            workers=train.workers,
            views=VIEWS if self.features and self.fixed(step) else None,
            **self.loading(),
        )

    def whole_images(self, split: Split) -> TestLoader:
        """A split's images as in a test on whole images, in random order."""
        order = epoch_order(self.config.seed, 0, 0, len(split))
        shuffled = replace(split, ids=tuple(split.ids[index] for index in order))
        return TestLoader(shuffled, Plan.of(self.config, 0).crop, mode="slide", **self.loading())

    def loading(self) -> dict[str, Any]:
        """What training and test loaders have in common."""
        own = {"rank": self.world.rank, "world": self.world.size, "device": self.world.device}
        return {**own, "kind": self.config.train.loader}


def resolve_for(config: RunConfig, dataset: Dataset, trained: bool = False) -> RunConfig:
    """`config` resolved for a data set that was opened in Python, whatever its `data.name` says."""
    config = resolve(replace(config, data=replace(config.data, name=dataset.name)), dataset, trained)
    check_pair(config.method, config.model)  # before any weight is read
    return config


def freeze_copy(model: SegmentationModel) -> SegmentationModel:
    """The model as a teacher: its own weights, no gradients, evaluation mode."""
    return copy.deepcopy(model).requires_grad_(False).eval()


def base_folder(source: str | Path) -> StepFolder:
    """The first step of another run, given its run folder or the step's own."""
    first = Path(source) / "step-0"
    return StepFolder(first if first.is_dir() else Path(source))


def load_base(source: str | Path, step: Step, config: RunConfig) -> SegmentationModel:
    """The step-0 model of another run, checked to fit this one."""
    model, method = base_folder(source).model(), METHODS.get(config.method.name)
    there, here, head = model.architecture, config.model, method.head
    if there.head == "random" and not method.solved:  # solved, and no start for training
        head = resolve_architecture(config.model, head=head).head
    for what, found, needed in (
        ("classes", ", ".join(model.classes), ", ".join(["background", *step.new_classes])),
        ("encoder", there.encoder, here.encoder),
        ("decoder", there.decoder, here.decoder),
        ("head", there.head, head or there.head),
    ):
        if found != needed:
            raise TissError(f"{source}: its {what}: {found}; this run needs {needed}", setting="base")
    return model


class Learner:
    """Learns the steps of a scenario one after another.

    >>> learner = Learner(method="mib", train={"epochs": 1})
    >>> learner.model is None
    True
    """

    def __init__(
        self,
        method: Any = "tiss",
        encoder: str | None = None,
        *,
        decoder: str | None = None,
        pretrained: str | None = None,
        model: SegmentationModel | None = None,
        data: DataConfig | dict[str, Any] | None = None,
        train: TrainConfig | dict[str, Any] | None = None,
        evaluation: EvalConfig | dict[str, Any] | None = None,
        seed: int = 0,
        config: RunConfig | None = None,
        reporter: Reporter | None = None,
        folder: Path | None = None,
    ) -> None:
        """`model` continues from a trained model; `config` replaces all other settings.

        `folder` is where trackers that write files put them.
        """
        sections = {
            "method": method,
            "data": to_mapping(data),
            "model": {"encoder": encoder, "decoder": decoder, "pretrained": pretrained},
            "train": to_mapping(train),
            "eval": to_mapping(evaluation),
            "seed": seed,
        }
        self.config = config or from_mapping(RunConfig, sections)
        self.reporter = reporter or TerminalReporter()
        self.world = World(self.config.train, folder)
        self.session: Session | None = None
        self._model = model

    @property
    def model(self) -> SegmentationModel | None:
        """The model after the last step; None before the first one."""
        return self.session.model if self.session else self._model

    def fit(self, step: Step) -> float:
        """Trains one step; returns the seconds of training."""
        if self.session is None:
            config = resolve_for(self.config, step.train.dataset, trained=self._model is not None)
            self.session = Session.start(
                config, step, model=self._model, world=self.world, reporter=self.reporter
            )
            self.config = config
        return self.session.learn(step)

    def confusion(self, split: Split, evaluation: EvalConfig | None = None) -> Tensor:
        """The confusion matrix of the model over `split`, exact over all processes."""
        session = self.session
        if session is None:  # around a model that was given, which has trained nothing here yet
            config, model = resolve_for(self.config, split.dataset), self._trained()
            method = build_method(config.method, len(model.groups))
            session = Session(config, model, method, self.world, self.reporter)
        return session.confusion(split, evaluation)

    def evaluate(self, split: Split, evaluation: EvalConfig | None = None) -> Scores:
        """Scores of the model over `split`."""
        matrix, model = self.confusion(split, evaluation), self._trained()
        return scores_from_confusion(
            matrix, model.classes, model.groups, has_background=split.dataset.has_background
        )

    def predict(self, image: Any) -> Prediction:
        """Class indices at the image's own size; `image` is a path, a PIL image or a uint8 array H × W × 3."""
        model = self._trained().to(self.world.device).eval()
        size = self.config.eval.size or self.config.data.crop or model.architecture.image_size
        return Predictor(model, size, device=self.world.device).predict(image)

    def _trained(self) -> SegmentationModel:
        if self.model is None:
            raise TissError("there is no model yet: fit a step first, or give one")
        return self.model
