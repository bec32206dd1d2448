"""tiss: incremental semantic segmentation, from the paper's tables to your own images.

The public names are loaded when they are first used, so that `tiss --help` and a plain import stay fast.
"""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "BACKGROUND": ("tiss.data.base", "BACKGROUND"),
    "Batch": ("tiss.data.base", "Batch"),
    "Dataset": ("tiss.data.base", "Dataset"),
    "Decoder": ("tiss.models.decoder", "Decoder"),
    "Encoder": ("tiss.models.encoder", "Encoder"),
    "EncoderOptions": ("tiss.models.encoder", "EncoderOptions"),
    "IGNORE": ("tiss.data.base", "IGNORE"),
    "Learner": ("tiss.engine.learner", "Learner"),
    "Level": ("tiss.models.encoder", "Level"),
    "Method": ("tiss.methods.base", "Method"),
    "Need": ("tiss.models.contract", "Need"),
    "Output": ("tiss.models.contract", "Output"),
    "Prediction": ("tiss.engine.predictor", "Prediction"),
    "Predictor": ("tiss.engine.predictor", "Predictor"),
    "Run": ("tiss.engine.run", "Run"),
    "RunConfig": ("tiss.config", "RunConfig"),
    "Scenario": ("tiss.scenarios.scenario", "Scenario"),
    "Scores": ("tiss.evaluation.scores", "Scores"),
    "SegmentationModel": ("tiss.models.model", "SegmentationModel"),
    "Settings": ("tiss.methods.base", "Settings"),
    "Step": ("tiss.scenarios.scenario", "Step"),
    "TissError": ("tiss.errors", "TissError"),
    "Tuned": ("tiss.models.encoder", "Tuned"),
    "all_sum": ("tiss.methods.base", "all_sum"),
    "from_pretrained": ("tiss.models.folder", "from_pretrained"),
    "load_run": ("tiss.engine.run", "load_run"),
    "load_scenario": ("tiss.scenarios.scenario", "load_scenario"),
    "register_dataset": ("tiss.data.base", "DATASETS.register"),
    "register_decoder": ("tiss.models.decoder", "DECODERS.register"),
    "register_encoder": ("tiss.models.encoder", "ENCODERS.register"),
    "register_method": ("tiss.methods.base", "register_method"),
    "run_experiment": ("tiss.engine.run", "run_experiment"),
    "setting": ("tiss.config", "setting"),
}

__all__ = ["__version__", *_PUBLIC]

if TYPE_CHECKING:
    from tiss.config import RunConfig as RunConfig
    from tiss.config import setting as setting
    from tiss.data.base import BACKGROUND as BACKGROUND
    from tiss.data.base import DATASETS
    from tiss.data.base import IGNORE as IGNORE
    from tiss.data.base import Batch as Batch
    from tiss.data.base import Dataset as Dataset
    from tiss.engine.learner import Learner as Learner
    from tiss.engine.predictor import Prediction as Prediction
    from tiss.engine.predictor import Predictor as Predictor
    from tiss.engine.run import Run as Run
    from tiss.engine.run import load_run as load_run
    from tiss.engine.run import run_experiment as run_experiment
    from tiss.errors import TissError as TissError
    from tiss.evaluation.scores import Scores as Scores
    from tiss.methods.base import Method as Method
    from tiss.methods.base import Settings as Settings
    from tiss.methods.base import all_sum as all_sum
    from tiss.methods.base import register_method as register_method
    from tiss.models.contract import Need as Need
    from tiss.models.contract import Output as Output
    from tiss.models.decoder import DECODERS
    from tiss.models.decoder import Decoder as Decoder
    from tiss.models.encoder import ENCODERS
    from tiss.models.encoder import Encoder as Encoder
    from tiss.models.encoder import EncoderOptions as EncoderOptions
    from tiss.models.encoder import Level as Level
    from tiss.models.encoder import Tuned as Tuned
    from tiss.models.folder import from_pretrained as from_pretrained
    from tiss.models.model import SegmentationModel as SegmentationModel
    from tiss.scenarios.scenario import Scenario as Scenario
    from tiss.scenarios.scenario import Step as Step
    from tiss.scenarios.scenario import load_scenario as load_scenario

    register_dataset, register_decoder, register_encoder = (
        DATASETS.register,
        DECODERS.register,
        ENCODERS.register,
    )


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tiss' has no attribute {name!r}")
    module, path = _PUBLIC[name]
    return attrgetter(path)(import_module(module))


def __dir__() -> list[str]:
    return sorted(__all__)
