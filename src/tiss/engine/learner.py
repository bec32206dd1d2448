"""The learner: the public face of a session, for loops over steps in Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tiss.config import DataConfig, EvalConfig, ModelConfig, RunConfig, TrainConfig, from_mapping
from tiss.engine.device import World
from tiss.engine.predictor import Prediction, Predictor
from tiss.engine.progress import Reporter, TerminalReporter
from tiss.engine.session import Session
from tiss.errors import TissError
from tiss.evaluation.scores import Scores, scores_from_confusion
from tiss.models import SegmentationModel
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
        """`model` continues from a trained model; `config` replaces all other settings.

        `folder` is where trackers that write files put them.
        """
        self.config = config or RunConfig(
            method=method,
            data=_section(DataConfig, data, "data"),
            model=ModelConfig(encoder=encoder, decoder=decoder, pretrained=pretrained),
            train=_section(TrainConfig, train, "train"),
            eval=_section(EvalConfig, evaluation, "eval"),
            seed=seed,
        )
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
            self.session = Session.start(
                self.config, step, model=self._model, world=self.world, reporter=self.reporter
            )
            self.config = self.session.config
        return self.session.learn(step)

    def confusion(self, split: Split, evaluation: EvalConfig | None = None) -> Tensor:
        """The confusion matrix of the model over `split`, exact over all processes."""
        session = self.session or self._test_session(split)
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

    def _test_session(self, split: Split) -> Session:
        """A session around a model that was given, which has trained nothing here yet."""
        model = self._trained()
        seen, steps = tuple(model.classes[1:]), len(model.groups)
        nothing = replace(split, ids=())
        step = Step(steps, len(model.classes), 0, seen, (), (), nothing, split, steps + 1)
        return Session.start(self.config, step, model=model, world=self.world, reporter=self.reporter)


def _section(cls: type, value: Any, where: str) -> Any:
    if value is None:
        return cls()
    return from_mapping(cls, value, where) if isinstance(value, dict) else value
