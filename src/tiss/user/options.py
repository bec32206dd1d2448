"""The options of `tiss train` and `tiss extend`; what is None follows from the images and the model."""

from dataclasses import dataclass

from tiss.config import REQUIRED, setting
from tiss.errors import TissError


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """What both have in common."""

    out: str = setting(REQUIRED, "the model folder to write; it must not exist")
    method: str = setting(
        "auto", "method (auto: the best that fits; see docs/choosing.md)", sets="method.name"
    )
    epochs: int | None = setting(
        None, "passes (None: by the number of images)", sets="train.epochs train.step_epochs"
    )
    batch: int | None = setting(None, "images per optimizer step (None: by their number)", sets="train.batch")
    lr: float | None = setting(None, "learning rate (None: the encoder's own)", sets="train.lr train.step_lr")
    size: int | None = setting(
        None, "training crop (None: the model's or the images', at most 512)", sets="data.crop eval.size"
    )
    holdout: float = setting(0.2, "share of the images kept for the test where there is no images/test")
    seed: int = setting(0, "seed of every random choice")
    device: str = setting("auto", "auto, cpu, cuda or mps", sets="train.device")
    allow_pickle: bool = setting(False, "also read .pth, .bin (unsafe if foreign)", sets="model.allow_pickle")
    resume: bool = setting(False, "resume from the last checkpoint of the same command")

    def __post_init__(self) -> None:
        counts = (("train.epochs", self.epochs), ("train.batch", self.batch), ("data.crop", self.size))
        for name, value in counts:
            if value is not None and value < 1:
                raise TissError(f"{value}: must be a whole number of at least 1, or left out", setting=name)
        if self.lr is not None and not self.lr > 0:
            raise TissError(f"{self.lr:g}: must be over 0, such as 5e-4, or left out", setting="train.lr")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(StepOptions):
    folder: str = setting(REQUIRED, "labelled folder", positional=True, sets="data.root")
    encoder: str | None = setting(
        None, "encoder (None: ViT-S on a GPU, ViT-Ti on a CPU)", sets="model.encoder"
    )
    decoder: str | None = setting(
        None, "decoder (None: the encoder's own; with --freeze levels, where it fits)", sets="model.decoder"
    )
    pretrained: str | None = setting(
        "auto", "file, folder or hub name of pretrained weights; none: from scratch", sets="model.pretrained"
    )
    freeze: bool = setting(False, "do not train the pretrained encoder: fast on a CPU, good with few images")


@dataclass(frozen=True, kw_only=True)
class ExtendOptions(StepOptions):
    model: str = setting(REQUIRED, "the model to extend", positional=True)
    data: str = setting(REQUIRED, "folder with the new images and their masks", sets="data.root")
    classes: str | None = setting(None, "new classes, with commas (None: those that the model does not know)")
    images: str | None = setting(
        None, "more images, without labels: old classes are learned and compared on them as well"
    )
    names: str | None = setting(
        None, "all classes of a MODEL whose files do not name them: with commas, or a file with one per line"
    )
    minutes: float = setting(
        10.0,
        "with method auto: methods that fit into this time are tried; taken is the one with the highest harmonic mean "
        "of new and old classes' IoU on held-out images (old ones without labels: agreement with the old model)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.minutes >= 0:
            raise TissError(f"{self.minutes:g}: must be at least 0", setting="minutes")
