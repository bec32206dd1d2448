"""The same in Python: a scenario, its steps, fit, evaluate, predict, save and load."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiss
from tiss.engine.progress import Reporter


def test_a_run_in_python(tiny_folder: Path, tmp_path: Path):
    scenario = tiss.load_scenario("folder", root=tiny_folder, task="2-1", setup="overlapped")
    learner = tiss.Learner(
        method="tiss",
        encoder="vit_micro_patch8",
        train={"recipe": "tuned", "epochs": 1, "batch": 4, "device": "cpu"},
        data={"crop": 32},
        reporter=Reporter(),
    )
    for step in scenario:
        learner.fit(step)
        scores = learner.evaluate(step.test)
        assert scores.all.with_background is not None
        learner.model.save_pretrained(tmp_path / f"step-{step.index}")

    picture = sorted((tiny_folder / "images" / "test").iterdir())[0]
    mask = learner.predict(picture)
    assert mask.mask.shape == Image.open(picture).size[::-1]
    assert abs(sum(mask.shares().values()) - 1) < 1e-9
    mask.overlay().save(tmp_path / "overlay.png")
    mask.save(tmp_path / "mask.png")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "mask.png")), mask.mask)

    again = tiss.SegmentationModel.from_pretrained(tmp_path / "step-2")
    images = torch.randint(0, 256, (1, 3, 40, 24), dtype=torch.uint8)
    assert torch.equal(again.eval()(images).logits, learner.model.cpu().eval()(images).logits)
    assert again.classes == ["background", "disc", "square", "triangle", "ring"]


def test_steps_come_in_order(tiny_folder: Path):
    scenario = tiss.load_scenario("folder", root=tiny_folder, task="2-2")
    learner = tiss.Learner(
        method="mib", encoder="vit_micro_patch8", reporter=Reporter(), train={"device": "cpu"}
    )
    with pytest.raises(tiss.TissError, match="fit the steps in order"):
        learner.fit(scenario[1])
    with pytest.raises(tiss.TissError, match="no model yet"):
        learner.predict("x.png")
