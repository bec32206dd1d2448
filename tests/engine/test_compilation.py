"""A growing head compiles nothing again."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from tiss.config import ModelConfig
from tiss.engine.compilation import compile_model
from tiss.models.build import build_model


@pytest.mark.slow
def test_the_head_grows_without_another_compilation():
    counter = CompileCounter()
    model = build_model(ModelConfig(encoder="vit_micro_patch8"), ["background", "a"], 32)
    for block in model.encoder.blocks:
        block.compile(backend=counter, dynamic=False)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    counts = []
    for names in (["b"], ["c", "d"], ["e"]):
        model(images, needs=(0, -1)).logits.sum().backward()
        counts.append(counter.frame_count)
        model.grow(names, "background")
    assert counts == [1, 1, 1]


def test_compiling_keeps_names_and_copies():
    model = build_model(ModelConfig(encoder="vit_micro_patch8"), ["background", "a"], 32)
    names = list(model.state_dict())
    compile_model(model)
    assert list(model.state_dict()) == names
    assert list(copy.deepcopy(model).state_dict()) == names
