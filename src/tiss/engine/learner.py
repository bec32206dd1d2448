"""The learner: a model, a method and a machine, taken from step to step."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiss.config import DataConfig, EvalConfig, ModelConfig, RunConfig, TrainConfig, from_mapping
from tiss.data.augment import AugmentSettings
from tiss.data.base import Dataset
from tiss.data.loader import TestLoader, TrainLoader
from tiss.engine.compilation import make_fast
from tiss.engine.journal import Journal
from tiss.engine.loop import StepTraining, end_step, train_step
from tiss.engine.prediction import Prediction, predict_image
from tiss.engine.progress import Reporter, TerminalReporter
from tiss.engine.recipes import resolve
from tiss.engine.world import World
from tiss.errors import TissError
from tiss.evaluation.evaluate import evaluate
from tiss.evaluation.scores import Scores, scores_from_confusion
from tiss.files import mark
from tiss.methods.base import Method, build_method, check_pair
from tiss.models.build import build_model
from tiss.models.model import SegmentationModel
from tiss.scenarios.scenario import Split, Step


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
        """`model` goes on from a model that has learnt already; `config` replaces all other settings.

        `folder` is where trackers that write files put them.
        """
        if config is None:
            config = RunConfig(
                method=method,
                data=_section(DataConfig, data, "data"),
                model=ModelConfig(encoder=encoder, decoder=decoder, pretrained=pretrained),
                train=_section(TrainConfig, train, "train"),
                eval=_section(EvalConfig, evaluation, "eval"),
                seed=seed,
            )
        self.config = config
        self.reporter = reporter or TerminalReporter()
        self.model = model
        self.method: Method | None = None
        self.world = World(config.train, folder)
        if not self.world.is_main:
            self.reporter = Reporter()
        self.skipped: dict[str, list[str]] = {
            "train": [],
            "test": [],
        }  # ids of the last step and the last test
        self._resolved = False
        self._teacher: SegmentationModel | None = None

    def fit(self, step: Step, journal: Journal | None = None) -> float:
        """Learns one step; returns the seconds of training."""
        with self.world.together():
            return self._fit(step, journal or Journal())

    def _fit(self, step: Step, journal: Journal) -> float:
        self.begin(step)
        assert self.model is not None and self.method is not None
        teacher = self._make_teacher() if step.index > 0 and self.method.uses_teacher else None
        self.method.begin(step, self.model, self.config.seed)
        self.model.to(self.world.device)
        self.model.encoder.checkpointing = self.config.train.checkpointing
        make_fast(self.model, self.config.train, self.world)
        with self._training(step, teacher, journal) as training:
            seconds = train_step(training)
            self.skipped["train"] = self.world.union(training.loader.skipped)
            return seconds

    def room(self, step: Step) -> int:
        """Bytes that the step's model will take in a folder, about, once `begin` was called."""
        assert self.model is not None and self.method is not None
        weights = sum(tensor.nbytes for tensor in self.model.state_dict().values())
        kept = self.method.state_bytes(self.model, step.old + step.new)
        return int(1.02 * (weights + kept)) + (64 << 10)  # new rows of the head, the matrix, small files

    def look(self, step: Step) -> None:
        """Lets the method take from a step's pictures what it keeps, where another method trained the step."""
        assert self.model is not None and self.method is not None
        if type(self.method).end is not Method.end:
            self.model.to(self.world.device)
            with self._training(step, None, Journal()) as training:
                end_step(training)

    @contextmanager
    def _training(
        self, step: Step, teacher: SegmentationModel | None, journal: Journal
    ) -> Iterator[StepTraining]:
        assert self.model is not None and self.method is not None
        loader = self.train_loader(step)
        try:
            yield StepTraining(
                self.config,
                self.world,
                self.model,
                teacher,
                self.method,
                step,
                loader,
                journal,
                self.reporter,
            )
        finally:
            loader.close()

    def begin(self, step: Step) -> None:
        """Gets ready for `step`: resolves settings, builds the model at step 0, checks that it fits."""
        self.resolve(step.train.dataset)
        if self.method is None:
            self.method = build_method(self.config.method, step.steps)
        if self.model is None:
            if step.index > 0:
                raise TissError(
                    f"step {step.index} needs the model of step {step.index - 1}: fit the steps in order"
                )
            names = ["background", *step.new_classes]
            check_pair(self.config.method, self.config.model)
            self.model = build_model(
                self.config.model, names, self.config.data.crop, head=self.method.head, seed=self.config.seed
            )
        self.method.check(self.model)
        known = len(self.model.classes)
        expected = step.old if step.index > 0 else step.old + step.new
        if known != expected:
            raise TissError(f"step {step.index} starts from {expected} channels, the model has {known}")
        self.model.to(self.world.device)

    def resolve(self, dataset: Dataset) -> None:
        """Answers every open setting once the data set is known."""
        if not self._resolved:
            name = getattr(dataset, "name", self.config.data.name)
            config = replace(self.config, data=replace(self.config.data, name=name))
            self.config = resolve(config, dataset)
            self.world.share_of(self.config.train.batch or 1, self.config.train.accumulate)
            self._resolved = True

    def _make_teacher(self) -> SegmentationModel:
        """The old model, frozen. One teacher serves all steps, so that it is compiled once."""
        assert self.model is not None
        if self._teacher is None:
            self._teacher = freeze_copy(self.model)
            make_fast(self._teacher, self.config.train, self.world)
        else:
            self._teacher.body.load_state_dict(self.model.body.state_dict())
            self._teacher.head = copy.deepcopy(self.model.head).requires_grad_(False).eval()
            self._teacher.classes, self._teacher.groups = list(self.model.classes), list(self.model.groups)
        return self._teacher

    def train_loader(self, step: Step) -> TrainLoader:
        data, train = self.config.data, self.config.train
        assert data.crop and data.scale and train.batch, "resolve first"
        settings = AugmentSettings(data.crop, data.resize, data.scale, data.flip, data.photometric)
        return TrainLoader(
            step.train,
            settings,
            batch=train.batch,
            seed=self.config.seed,
            step=step.index,
            rank=self.world.rank,
            world=self.world.size,
            kind=train.loader,
            workers=train.workers,
            device=self.world.device,
            on_error=data.on_error,
        )

    def confusion(self, split: Split, evaluation: EvalConfig | None = None) -> Tensor:
        """The confusion matrix of the model over `split`, exact over all processes."""
        self.resolve(split.dataset)
        if self.model is None:
            raise TissError("there is no model yet: fit a step first, or give one")
        mark("evaluate")
        how = evaluation or self.config.eval
        self.model.to(self.world.device).eval()
        loader = TestLoader(
            split,
            size=how.size or self.config.data.crop or 512,
            mode=how.mode,
            batch=how.batch,
            rank=self.world.rank,
            world=self.world.size,
            device=self.world.device,
            kind=self.config.train.loader,
            on_error=self.config.data.on_error,
        )
        try:
            # batches of a test differ in size, and a forward pass is short: nothing to compile there
            eager = torch.compiler.set_stance("force_eager")
            with self.reporter.bar("test", len(split)) as bar, self.world.autocast(), eager:
                matrix = evaluate(
                    self.model,
                    loader,
                    len(self.model.classes),
                    device=self.world.device,
                    progress=bar.advance,
                )
            self.skipped["test"] = self.world.union(loader.skipped)
            return matrix
        finally:
            loader.close()

    def evaluate(self, split: Split, evaluation: EvalConfig | None = None) -> Scores:
        """Scores of the model over `split`."""
        assert self.model is not None, "fit a step first"
        matrix = self.confusion(split, evaluation)
        return scores_from_confusion(
            matrix, self.model.classes, self.model.groups, has_background=split.dataset.has_background
        )

    def predict(self, picture: Any) -> Prediction:
        """Class indices at the picture's own size; `picture` is a path, a PIL image or a uint8 array H × W × 3."""
        if self.model is None:
            raise TissError("there is no model yet: fit a step first, or give one")
        self.model.to(self.world.device).eval()
        size = self.config.eval.size or self.config.data.crop
        return predict_image(self.model, picture, size=size, device=self.world.device)


def freeze_copy(model: SegmentationModel) -> SegmentationModel:
    """The old model as a teacher: its own weights, no gradients, evaluation mode."""
    teacher = copy.deepcopy(model)
    teacher.requires_grad_(False)
    return teacher.eval()


def _section(cls: type, value: Any, where: str) -> Any:
    if value is None:
        return cls()
    return from_mapping(cls, value, where) if isinstance(value, dict) else value
