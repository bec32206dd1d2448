"""tiss: incremental semantic segmentation, from the paper's tables to your own pictures.

The public names are loaded when they are first used, so that `tiss --help` and a plain import stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Learner": "tiss.engine.learner",
    "Prediction": "tiss.engine.prediction",
    "Run": "tiss.engine.run",
    "RunConfig": "tiss.config",
    "Scenario": "tiss.scenarios.scenario",
    "Scores": "tiss.evaluation.scores",
    "SegmentationModel": "tiss.models.model",
    "Step": "tiss.scenarios.scenario",
    "TissError": "tiss.errors",
    "from_pretrained": "tiss.models.folder",
    "load_run": "tiss.engine.run",
    "load_scenario": "tiss.scenarios.scenario",
    "register_method": "tiss.methods.base",
    "run_experiment": "tiss.engine.run",
}

__all__ = ["__version__", *_PUBLIC]

if TYPE_CHECKING:
    from tiss.config import RunConfig as RunConfig
    from tiss.engine.learner import Learner as Learner
    from tiss.engine.prediction import Prediction as Prediction
    from tiss.engine.run import Run as Run
    from tiss.engine.run import load_run as load_run
    from tiss.engine.run import run_experiment as run_experiment
    from tiss.errors import TissError as TissError
    from tiss.evaluation.scores import Scores as Scores
    from tiss.methods.base import register_method as register_method
    from tiss.models.folder import from_pretrained as from_pretrained
    from tiss.models.model import SegmentationModel as SegmentationModel
    from tiss.scenarios.scenario import Scenario as Scenario
    from tiss.scenarios.scenario import Step as Step
    from tiss.scenarios.scenario import load_scenario as load_scenario


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tiss' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
