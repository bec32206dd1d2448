"""Settings that follow from the images and the model, for users who set none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tiss.config import DataConfig, EvalConfig, ModelConfig, RunConfig, TrainConfig
from tiss.engine.predictor import seen_size
from tiss.engine.recipes import recipe_values
from tiss.engine.run_folder import StepFolder
from tiss.errors import TissError
from tiss.methods.base import METHODS, settings_from
from tiss.models.encoder import encoder_defaults, outline
from tiss.models.model import SegmentationModel
from tiss.user.folder_step import LabelledFolder

FIRST_IMAGES, STEP_IMAGES = (
    6000,
    1500,
)  # seen in training, all epochs together: for a first model and for a step
FIRST_EPOCHS, STEP_EPOCHS = (20, 100), (5, 40)  # fewest and most
GRAIN, SMALLEST, LARGEST = 32, 32, 512  # of the training crop


@dataclass(frozen=True)
class Options:
    """What the user set; the rest is None and chosen here."""

    method: str = "auto"
    epochs: int | None = None
    batch: int | None = None
    lr: float | None = None
    size: int | None = None
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for setting, value in (
            *(("train.epochs", self.epochs), ("train.batch", self.batch)),
            ("data.crop", self.size),
        ):
            if value is not None and value < 1:
                raise TissError(
                    f"{value}: must be a whole number of at least 1, or left out", setting=setting
                )
        if self.lr is not None and not self.lr > 0:
            raise TissError(
                f"{self.lr:g}: must be a number over 0, such as 5e-4, or left out", setting="train.lr"
            )


def choose_epochs(images: int, total: int, least: int, most: int) -> int:
    """As many epochs as show training about `total` images.

    >>> [choose_epochs(n, 1500, 5, 40) for n in (10, 50, 1000)]
    [40, 30, 5]
    """
    return min(most, max(least, round(total / images)))


def choose_batch(images: int) -> int:
    """Small batches for few images, so that there are enough updates.

    >>> [choose_batch(n) for n in (3, 50, 1000)]
    [2, 4, 8]
    """
    return next(batch for batch, least in ((8, 200), (4, 8), (2, 2), (1, 0)) if images >= least)


def choose_size(dataset: LabelledFolder) -> int:
    """The training crop: the median of the images' shorter sides, a multiple of 32, at most 512."""
    sides = sorted(min(entry.width, entry.height) for entry in dataset.entries("train").values())
    return min(LARGEST, max(SMALLEST, sides[len(sides) // 2] // GRAIN * GRAIN))


def choose_encoder(device: str) -> str:
    """A ViT that the machine trains in minutes."""
    gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    return "vit_small_patch16_384" if gpu else "vit_tiny_patch16_384"


def choose_pretrained(encoder: str, wish: str | None) -> str | None:
    """`auto` is the encoder's published weights where it has any."""
    if wish != "auto":
        return wish
    return "default" if outline(encoder).hub is not None else None


def choose_method(asked: str, model: SegmentationModel, source: StepFolder) -> str:
    """`auto` is recall where the model kept its classes' statistics, else MiB."""
    kept = has_statistics(model, source)
    if asked == "auto":
        return "recall" if kept and model.architecture.head in ("linear", "cosine") else "mib"
    if METHODS.get(asked).joint:
        raise TissError(f"{asked}: needs all the old images: use mib or recall", setting="method")
    if asked == "recall" and not kept:
        raise TissError(
            f"recall: needs the class statistics that {source.path} lacks: use mib", setting="method"
        )
    return asked


def has_statistics(model: SegmentationModel, source: StepFolder) -> bool:
    """Whether the folder holds recall's statistics of every class of the model."""
    shapes = {name: tuple(tensor.shape) for name, tensor in source.method_state().items()}
    count, width = len(model.classes), model.decoder.channels
    return shapes == {"means": (count, width), "roots": (count, width, width), "counts": (count,)}


def first_config(dataset: LabelledFolder, images: int, options: Options, model: ModelConfig) -> RunConfig:
    """The configuration of a first model."""
    recipe = "demo" if model.pretrained is None else "tuned"
    epochs = options.epochs or choose_epochs(images, FIRST_IMAGES, *FIRST_EPOCHS)
    method = "recall" if options.method == "auto" else options.method
    return _config(options, images, epochs, recipe, method, options.size or choose_size(dataset), model)


def step_config(model: SegmentationModel, method: str, images: int, options: Options) -> RunConfig:
    """The configuration of one more step of `model`."""
    architecture = model.architecture
    usual = "tuned" if outline(architecture.encoder).hub is not None else "demo"
    recipe = str(model.record.get("recipe") or usual)
    epochs = options.epochs or choose_epochs(images, STEP_IMAGES, *STEP_EPOCHS)
    section = ModelConfig(
        encoder=architecture.encoder, decoder=architecture.decoder, image_size=architecture.image_size
    )
    return _config(options, images, epochs, recipe, method, options.size or seen_size(model), section)


def _config(
    options: Options, images: int, epochs: int, recipe: str, method: str, size: int, model: ModelConfig
) -> RunConfig:
    batch = min(options.batch or choose_batch(images), images)
    updates = epochs * max(1, images // batch)
    values = recipe_values(recipe, "folder", encoder_defaults(str(model.encoder)), METHODS.get(method))
    rates: dict[str, Any] = {} if options.lr is None else {"lr": options.lr, "step_lr": options.lr}
    return RunConfig(
        data=DataConfig(name="folder", crop=size),
        method=settings_from(method),
        model=model,
        train=TrainConfig(
            recipe=recipe,  # type: ignore[arg-type]
            epochs=epochs,
            step_epochs=epochs,
            batch=batch,
            # a warm-up meant for long runs would be all of a short one
            warmup=min(int(values.get("warmup") or 0), updates // 10),
            device=options.device,
            workers=0,
            save_every=max(1, updates // 10),
            **rates,
        ),
        eval=EvalConfig(mode="slide", size=size),
        seed=options.seed,
    )
