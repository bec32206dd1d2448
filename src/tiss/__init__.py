"""tiss: incremental semantic segmentation, from the paper's tables to your own images.

The public names are loaded when they are first used, so that `tiss --help` and a plain import stay fast.
"""

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_PUBLIC = {
    "tiss.config": "RunConfig setting",
    "tiss.data.base": "BACKGROUND Batch Dataset IGNORE",
    "tiss.engine.session": "Learner",
    "tiss.engine.predictor": "Prediction Predictor",
    "tiss.engine.run": "load_run Run run_experiment",
    "tiss.errors": "TissError",
    "tiss.evaluation.scores": "Scores",
    "tiss.methods.base": "all_sum Method register_method Settings",
    "tiss.models": "Decoder Encoder EncoderOptions from_pretrained Level Need Output SegmentationModel Tuned",
    "tiss.scenarios": "load_scenario Scenario Step",
    "tiss.user.edit": "forget merge",
    "tiss.user.suggest": "suggest",
    "tiss.user.teach": "Teaching",
}
_PLACES = {name: (module, name) for module, names in _PUBLIC.items() for name in names.split()} | {
    "register_dataset": ("tiss.data.base", "DATASETS.register"),
    "register_decoder": ("tiss.models", "DECODERS.register"),
    "register_encoder": ("tiss.models", "ENCODERS.register"),
}

__all__ = ["__version__", *sorted(_PLACES)]

if TYPE_CHECKING:
    from tiss.config import RunConfig as RunConfig
    from tiss.config import setting as setting
    from tiss.data.base import BACKGROUND as BACKGROUND
    from tiss.data.base import DATASETS
    from tiss.data.base import IGNORE as IGNORE
    from tiss.data.base import Batch as Batch
    from tiss.data.base import Dataset as Dataset
    from tiss.engine.predictor import Prediction as Prediction
    from tiss.engine.predictor import Predictor as Predictor
    from tiss.engine.run import Run as Run
    from tiss.engine.run import load_run as load_run
    from tiss.engine.run import run_experiment as run_experiment
    from tiss.engine.session import Learner as Learner
    from tiss.errors import TissError as TissError
    from tiss.evaluation.scores import Scores as Scores
    from tiss.methods.base import Method as Method
    from tiss.methods.base import Settings as Settings
    from tiss.methods.base import all_sum as all_sum
    from tiss.methods.base import register_method as register_method
    from tiss.models import DECODERS, ENCODERS
    from tiss.models import Decoder as Decoder
    from tiss.models import Encoder as Encoder
    from tiss.models import EncoderOptions as EncoderOptions
    from tiss.models import Level as Level
    from tiss.models import Need as Need
    from tiss.models import Output as Output
    from tiss.models import SegmentationModel as SegmentationModel
    from tiss.models import Tuned as Tuned
    from tiss.models import from_pretrained as from_pretrained
    from tiss.scenarios import Scenario as Scenario
    from tiss.scenarios import Step as Step
    from tiss.scenarios import load_scenario as load_scenario
    from tiss.user.edit import forget as forget
    from tiss.user.edit import merge as merge
    from tiss.user.suggest import suggest as suggest
    from tiss.user.teach import Teaching as Teaching

    register_dataset, register_decoder, register_encoder = (
        DATASETS.register,
        DECODERS.register,
        ENCODERS.register,
    )


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'tiss' has no attribute {name!r}")
    module, path = _PLACES[name]
    return attrgetter(path)(import_module(module))


def __dir__() -> list[str]:
    return sorted(__all__)
