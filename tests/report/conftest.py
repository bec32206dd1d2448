"""Runs with untrained models: three steps of TISS, and everything at once."""

from pathlib import Path

import pytest
import torch

from tests.report.fakes import folder, results
from tiss.config import ModelConfig
from tiss.data.shapes import Shapes
from tiss.files import write_tensors
from tiss.models import SegmentationModel, build_model
from tiss.scenarios import Scenario, load_scenario


@pytest.fixture(scope="session")
def scenario() -> Scenario:
    return load_scenario(Shapes(train=80, test=60))


def demo_model(classes: list[str]) -> SegmentationModel:
    config = ModelConfig(encoder="vit_demo_patch8", decoder="linear", image_size=64)
    return build_model(config, classes, 64, seed=0)


@pytest.fixture(scope="session")
def model_runs(tmp_path_factory: pytest.TempPathFactory, scenario: Scenario) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    paths = [folder(root, results(method)) for method in ("tiss", "offline")]
    model = demo_model(list(scenario[0].classes))
    for step in scenario:
        if step.index:
            model.grow(step.new_classes, initialise="random")
        _save(model, paths[0] / f"step-{step.index}")
    _save(demo_model(list(scenario.classes)), paths[1] / "step-0")
    return paths


def _save(model: SegmentationModel, path: Path) -> None:
    model.save_pretrained(path)
    confusion = torch.eye(len(model.classes), dtype=torch.int64)
    write_tensors(path / "confusion.safetensors", {"confusion": confusion})
