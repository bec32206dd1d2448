"""Recipes: what `None` means in a configuration, by data set, encoder and step."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from tiss.config import RunConfig, TrainConfig
from tiss.data.base import Dataset
from tiss.errors import TissError
from tiss.methods.base import METHODS, Method, settings_from
from tiss.models.encoder import EncoderDefaults, encoder_defaults

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


def recipe_values(name: str, data: str, encoder: EncoderDefaults, method: type[Method]) -> dict[str, Any]:
    """The settings of a recipe: `tuned` is the paper's with what the encoder's family and the method need."""
    if name == "demo":
        return dict(DEMO)
    paper = PAPER | PAPER_BY_DATA.get(data, {})
    return paper | encoder.tuned | dict(method.tuned) if name == "tuned" else paper


def default_encoder(config: RunConfig) -> str:
    """The encoder where none is named: a small one for the embedded data set, else the paper's."""
    return "vit_demo_patch8" if config.data.name == "shapes" else "vit_small_patch16_384"


def resolve(config: RunConfig, dataset: Dataset) -> RunConfig:
    """`config` with every `None` that a recipe, the data set or the encoder answers replaced by the answer."""
    embedded = config.data.name == "shapes"
    crop = config.data.crop or getattr(dataset, "default_crop", 512)
    scale = config.data.scale or ((1.0, 1.0) if embedded else (0.5, 2.0))
    data = replace(config.data, crop=crop, scale=scale)
    encoder_name = config.model.encoder or default_encoder(config)
    encoder = encoder_defaults(encoder_name)
    model = replace(
        config.model,
        encoder=encoder_name,
        decoder=config.model.decoder or encoder.decoder,
        image_size=config.model.image_size or crop,
    )
    name = config.train.recipe or ("demo" if embedded else "paper")
    method = settings_from(config.method)
    values = recipe_values(name, config.data.name, encoder, METHODS.get(method.name))
    train = _fill(replace(config.train, recipe=name), values)
    train = replace(train, step_epochs=train.epochs if train.step_epochs is None else train.step_epochs)
    for key in ("epochs", "step_epochs", "batch", "accumulate"):
        if (value := getattr(train, key)) is not None and value < 1:
            raise TissError(f"--train.{key} {value}: give a whole number from 1 on")
    evaluation = replace(config.eval, size=config.eval.size or crop)
    task = config.task or getattr(dataset, "default_task", None)
    return replace(config, data=data, model=model, train=train, eval=evaluation, task=task, method=method)


def _fill(train: TrainConfig, values: dict[str, Any]) -> TrainConfig:
    missing = {f.name for f in fields(train) if getattr(train, f.name) is None}
    return replace(train, **{key: value for key, value in values.items() if key in missing})
