"""What None means for the recipe: by the weights; the paper's settings are asked for."""

from pathlib import Path
from typing import Any

import pytest

from tiss import Learner, load_scenario
from tiss.cli.grid import load_table, tables
from tiss.config import RunConfig, from_mapping
from tiss.data.shapes import Shapes
from tiss.engine.grid import commands, expand, plan
from tiss.engine.progress import Reporter
from tiss.engine.recipes import PAPER, resolve
from tiss.files import write_tensors
from tiss.models import EncoderOptions, make_encoder


@pytest.mark.parametrize(
    ("given", "recipe"),
    [
        ({}, "demo"),
        ({"model": {"pretrained": "default"}}, "tuned"),
        ({"base": "runs/other"}, "tuned"),
        ({"train": {"recipe": "paper"}, "model": {"pretrained": "default"}}, "paper"),
        ({"data": "shapes", "base": "runs/other"}, "demo"),
    ],
)
def test_the_recipe_follows_from_the_weights(given: dict[str, Any], recipe: str) -> None:
    config = from_mapping(RunConfig, {"data": "voc", "method": "mib", **given})
    train = resolve(config, Shapes()).train
    assert train.recipe == recipe
    assert (train.lr == PAPER["lr"]) == (recipe == "paper")


def test_the_grids_of_the_paper_ask_for_its_settings() -> None:
    for name in tables():
        assert {config.train.recipe for config in expand(load_table(name))} == {"paper"}, name


def test_a_model_that_is_given_is_tuned(tiny_folder: Path) -> None:
    step = load_scenario("folder", root=tiny_folder, task="2-2")[0]
    train = {"epochs": 1, "batch": 4, "device": "cpu"}
    data = {"crop": 32}
    learner = Learner("ft", "vit_micro_patch8", train=train, data=data, reporter=Reporter())
    learner.fit(step)
    again = Learner(
        "ft", "vit_micro_patch8", train=train, data=data, model=learner.model, reporter=Reporter()
    )
    again.fit(load_scenario("folder", root=tiny_folder, task="2-2")[1])
    assert (learner.config.train.recipe, again.config.train.recipe) == ("demo", "tuned")


def test_listed_commands_keep_the_recipe_of_the_grid(tiny_folder: Path, tmp_path: Path) -> None:
    """A run that starts from a base would have another default."""
    weights = tmp_path / "vit.safetensors"
    write_tensors(weights, make_encoder("vit_micro_patch8", EncoderOptions(32)).state_dict())
    defaults = {"data": {"name": "folder", "root": str(tiny_folder)}, "task": "2-2", "method": "ft"}
    for pretrained, recipe in ((None, "demo"), (str(weights), "tuned")):
        model = {"encoder": "vit_micro_patch8", "pretrained": pretrained}
        listed = list(commands(plan({"defaults": {**defaults, "model": model}}), tmp_path))
        assert len(listed) == 2
        assert all(f"--train.recipe {recipe}" in command for command in listed)
