"""Everything that takes part in the training of one step."""

from __future__ import annotations

from dataclasses import dataclass

from tiss.config import RunConfig
from tiss.data.loader import TrainLoader
from tiss.engine.journal import Journal
from tiss.engine.progress import Reporter
from tiss.engine.world import World
from tiss.methods.base import Method
from tiss.models.model import SegmentationModel
from tiss.scenarios.scenario import Step


@dataclass
class StepTraining:
    """Everything that takes part in the training of one step."""

    config: RunConfig
    world: World
    model: SegmentationModel
    teacher: SegmentationModel | None
    method: Method
    step: Step
    loader: TrainLoader
    journal: Journal
    reporter: Reporter

    @property
    def epochs(self) -> int:
        epochs = self.config.train.epochs if self.step.index == 0 else self.config.train.step_epochs
        assert epochs is not None, "resolve first"
        return epochs

    @property
    def iterations(self) -> int:
        return self.epochs * len(self.loader)
