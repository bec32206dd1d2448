"""What a person who sets nothing gets: settings that follow from the pictures and the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tiss.config import DataConfig, EvalConfig, ModelConfig, RunConfig, TrainConfig
from tiss.engine.recipes import recipe_values
from tiss.errors import TissError
from tiss.files import read_tensors
from tiss.methods.base import METHODS, settings_from
from tiss.models.encoder import encoder_defaults, outline
from tiss.models.model import SegmentationModel
from tiss.user.lesson import LabelledFolder

FIRST_PICTURES, STEP_PICTURES = (
    6000,
    1500,
)  # pictures that training looks at in all, for a first model and for a step
FIRST_EPOCHS, STEP_EPOCHS = (20, 100), (5, 40)  # fewest and most
GRAIN, SMALLEST, LARGEST = 32, 32, 512  # of the training crop
STATE = "method.safetensors"


@dataclass(frozen=True)
class Wishes:
    """What the user did set; None is answered here."""

    method: str = "auto"
    epochs: int | None = None
    batch: int | None = None
    lr: float | None = None
    size: int | None = None
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for flag, value in (("epochs", self.epochs), ("batch", self.batch), ("size", self.size)):
            if value is not None and value < 1:
                raise TissError(f"--{flag} {value}: give a whole number from 1 on, or leave it out")
        if self.lr is not None and not self.lr > 0:
            raise TissError(f"--lr {self.lr:g}: give a number over 0, such as 5e-4, or leave it out")


def choose_epochs(pictures: int, looks: int, least: int, most: int) -> int:
    """So many epochs that training looks at about `looks` pictures.

    >>> [choose_epochs(n, 1500, 5, 40) for n in (10, 50, 1000)]
    [40, 30, 5]
    """
    return min(most, max(least, round(looks / pictures)))


def choose_batch(pictures: int) -> int:
    """Small batches for few pictures, so that there are updates enough.

    >>> [choose_batch(n) for n in (3, 50, 1000)]
    [2, 4, 8]
    """
    return next(batch for batch, least in ((8, 200), (4, 8), (2, 2), (1, 0)) if pictures >= least)


def choose_size(dataset: LabelledFolder) -> int:
    """The training crop: the pictures' usual shorter side, in whole 32s, at most 512."""
    sides = sorted(min(entry.width, entry.height) for entry in dataset.entries("train").values())
    usual = sides[len(sides) // 2]
    return min(LARGEST, max(SMALLEST, usual // GRAIN * GRAIN))


def choose_encoder(device: str) -> str:
    """A ViT that the machine trains in minutes."""
    gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    return "vit_small_patch16_384" if gpu else "vit_tiny_patch16_384"


def choose_pretrained(encoder: str, wish: str | None) -> str | None:
    """`auto` is the encoder's published weights where it has any."""
    if wish != "auto":
        return wish
    return "default" if outline(encoder).hub is not None else None


def choose_method(wish: str, model: SegmentationModel, folder: Path) -> str:
    """`auto` is recall where the model kept its classes' statistics, else MiB."""
    kept = usable_state(model, folder)
    if wish == "auto":
        return "recall" if kept and model.architecture.head in ("linear", "cosine") else "mib"
    if METHODS.get(wish).joint:
        raise TissError(f"--method {wish} needs all the old pictures: take mib or recall")
    if wish == "recall" and not kept:
        raise TissError(f"--method recall needs the class statistics that {folder} lacks: take --method mib")
    return wish


def usable_state(model: SegmentationModel, folder: Path) -> bool:
    """Whether the folder holds recall's statistics of every class of the model."""
    if not (folder / STATE).is_file():
        return False
    tensors = read_tensors(folder / STATE)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    count, width = len(model.classes), model.decoder.channels
    return shapes == {"means": (count, width), "roots": (count, width, width), "counts": (count,)}


def choose_recipe(encoder: str, pretrained: bool) -> str:
    """The encoder's own settings; without pretrained weights, those that learn from nothing."""
    return "tuned" if pretrained else "demo"


def first_config(dataset: LabelledFolder, pictures: int, wishes: Wishes, model: ModelConfig) -> RunConfig:
    """The configuration of a first model."""
    assert model.encoder is not None
    recipe = choose_recipe(model.encoder, model.pretrained is not None)
    epochs = wishes.epochs or choose_epochs(pictures, FIRST_PICTURES, *FIRST_EPOCHS)
    method = "recall" if wishes.method == "auto" else wishes.method
    return _config(wishes, pictures, epochs, recipe, method, wishes.size or choose_size(dataset), model)


def step_config(model: SegmentationModel, method: str, pictures: int, wishes: Wishes) -> RunConfig:
    """The configuration of one more step of `model`."""
    architecture = model.architecture
    known = outline(architecture.encoder).hub is not None
    recipe = str(model.record.get("recipe") or choose_recipe(architecture.encoder, known))
    epochs = wishes.epochs or choose_epochs(pictures, STEP_PICTURES, *STEP_EPOCHS)
    size = wishes.size or seen_size(model)
    section = ModelConfig(
        encoder=architecture.encoder, decoder=architecture.decoder, image_size=architecture.image_size
    )
    return _config(wishes, pictures, epochs, recipe, method, size, section)


def seen_size(model: SegmentationModel) -> int:
    """The shorter side at which the model is used: what its folder says, else what it was laid out for."""
    size = model.record.get("eval_size")
    return size if isinstance(size, int) and 16 <= size <= 4096 else model.architecture.image_size


def _config(
    wishes: Wishes, pictures: int, epochs: int, recipe: str, method: str, size: int, model: ModelConfig
) -> RunConfig:
    batch = min(wishes.batch or choose_batch(pictures), pictures)
    updates = epochs * max(1, pictures // batch)
    assert model.encoder is not None
    values = recipe_values(recipe, "folder", encoder_defaults(model.encoder), METHODS.get(method))
    rates: dict[str, Any] = {} if wishes.lr is None else {"lr": wishes.lr, "step_lr": wishes.lr}
    return RunConfig(
        data=DataConfig(name="folder", crop=size),
        method=settings_from(method),
        model=model,
        train=TrainConfig(
            recipe=recipe,  # type: ignore[arg-type]
            epochs=epochs,
            step_epochs=epochs,
            batch=batch,
            # a warm-up made for long runs would be all of a short one
            warmup=min(int(values.get("warmup") or 0), updates // 10),
            device=wishes.device,
            workers=0,
            **rates,
        ),
        eval=EvalConfig(mode="slide", size=size),
        seed=wishes.seed,
    )
