"""Recipes: what `None` means in a configuration, by data set, encoder and step."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from tiss.config import RunConfig
from tiss.data.base import Dataset
from tiss.methods.base import METHODS, Method, settings_from
from tiss.models import Encoder, outline

PAPER: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 1e-2,
    "step_lr": 1e-3,
    "encoder_lr": 1.0,
    "weight_decay": 1e-4,
    "warmup": 0,
    "epochs": 30,
    "batch": 12,
}
PAPER_BY_DATA: dict[str, dict[str, Any]] = {"ade20k": {"epochs": 60, "batch": 8}}
DEMO: dict[str, Any] = {
    "optimizer": "adamw",
    "lr": 1.5e-3,
    "step_lr": 1.5e-3,
    "encoder_lr": 1.0,
    "weight_decay": 0.05,
    "warmup": 40,
    "clip": 1.0,
    "epochs": 8,
    "step_epochs": 4,
    "batch": 8,
}


def recipe_values(name: str, data: str, encoder: Encoder, method: type[Method]) -> dict[str, Any]:
    """The settings of a recipe: `tuned` is the paper's with what the encoder's family and the method need."""
    if name == "demo":
        return dict(DEMO)
    paper = PAPER | PAPER_BY_DATA.get(data, {})
    return paper | asdict(encoder.tuned) | dict(method.tuned) if name == "tuned" else paper


def default_encoder(config: RunConfig) -> str:
    """The encoder where none is named: a small one for the built-in data set, else the paper's."""
    return config.model.encoder or (
        "vit_demo_patch8" if config.data.name == "shapes" else "vit_small_patch16_384"
    )


def default_recipe(config: RunConfig, trained: bool) -> Literal["tuned", "demo"]:
    """`tuned` for weights that are trained already, `demo` from scratch; `paper` has to be asked for."""
    begun = (trained or config.base is not None) and config.data.name != "shapes"
    return "tuned" if begun or config.model.pretrained is not None else "demo"


def resolve(config: RunConfig, dataset: Dataset, trained: bool = False) -> RunConfig:
    """`config` with every `None` replaced by what the recipe, the data set or the encoder says.

    `trained` says that a trained model is given.
    """
    built_in = config.data.name == "shapes"
    crop = config.data.crop or dataset.default_crop
    scale = config.data.scale or ((1.0, 1.0) if built_in else (0.5, 2.0))
    encoder_name = default_encoder(config)
    encoder = outline(encoder_name)
    model = replace(
        config.model,
        encoder=encoder_name,
        decoder=config.model.decoder or encoder.default_decoder,
        image_size=config.model.image_size or crop,
    )
    name = config.train.recipe or default_recipe(config, trained)
    method = settings_from(config.method)
    values = recipe_values(name, config.data.name, encoder, METHODS.get(method.name))
    train = replace(config.train, recipe=name)
    missing = {f.name for f in fields(train) if getattr(train, f.name) is None}
    train = replace(train, **{key: value for key, value in values.items() if key in missing})
    train = replace(train, step_epochs=train.epochs if train.step_epochs is None else train.step_epochs)
    return replace(
        config,
        data=replace(config.data, crop=crop, scale=scale),
        model=model,
        train=train,
        eval=replace(
            config.eval, size=config.eval.size or crop, mode=config.eval.mode or dataset.default_mode
        ),
        task=config.task or dataset.default_task,
        method=method,
    )


@dataclass(frozen=True)
class Plan:
    """What one step is trained with: resolved settings, those of later steps where they have their own."""

    crop: int
    scale: tuple[float, float]
    batch: int
    epochs: int
    optimizer: str
    lr: float
    encoder_lr: float
    weight_decay: float
    momentum: float
    warmup: int
    clip: float | None

    @classmethod
    def of(cls, config: RunConfig, step: int) -> Plan:
        train = config.train
        given: dict[str, Any] = {f.name: getattr(train, f.name, None) for f in fields(cls)}
        given |= {"crop": config.data.crop, "scale": config.data.scale}
        if step > 0:
            given |= {"epochs": train.step_epochs, "lr": train.step_lr}
        return cls(**given)
