"""Which blocks the two contrasts look at, and at which steps."""

from __future__ import annotations

import pytest
import torch

from tests.methods.toy import toy_config
from tiss.config import ModelConfig
from tiss.data.base import Batch
from tiss.errors import TissError
from tiss.losses import patch_contrast
from tiss.methods.base import build_method, check_pair
from tiss.models import build_model, tokens

ENCODER = "vit_micro_patch8"
LAST, BEFORE_NORM = 2, 3  # places among the features that `contrasts` returns


@pytest.fixture
def contrasts():
    """The terms of a method at step 0 or later, and the outputs that they were made of."""

    def make(later: bool, **settings):
        torch.manual_seed(0)
        config = ModelConfig(encoder=ENCODER)
        student, teacher = (build_model(config, ["background", "a", "b"], 32).eval() for _ in range(2))
        method = build_method({"name": "tiss", **settings}, 3)
        images = torch.rand(2, 3, 32, 32) * 255
        needs = method.needs(student)
        outputs = student(images, needs=needs), teacher(images, needs=needs) if later else None
        terms = method.losses(Batch(images, torch.zeros(2, 32, 32, dtype=torch.long), []), *outputs)
        every = (*range(student.encoder.depth), "before_norm")
        blocks = [[tokens(f) for f in model(images, needs=every).features] for model in (student, teacher)]
        return terms, *blocks

    return make


def test_the_paper_sets_last_against_first_and_last_against_last(contrasts):
    terms, student, teacher = contrasts(later=True)
    torch.testing.assert_close(terms["ct"], 0.1 * patch_contrast(student[LAST], student[0]))
    torch.testing.assert_close(terms["cd"], 0.1 * patch_contrast(student[LAST], teacher[LAST]))


def test_other_blocks_can_be_named(contrasts):
    terms, student, teacher = contrasts(later=True, ct_block=1, cd_block=0)
    torch.testing.assert_close(terms["ct"], 0.1 * patch_contrast(student[LAST], student[1]))
    torch.testing.assert_close(terms["cd"], 0.1 * patch_contrast(student[0], teacher[0]))


def test_the_last_layer_can_be_taken_before_the_final_norm(contrasts):
    terms, student, teacher = contrasts(later=True, final_norm=False)
    torch.testing.assert_close(terms["ct"], 0.1 * patch_contrast(student[BEFORE_NORM], student[0]))
    torch.testing.assert_close(terms["cd"], 0.1 * patch_contrast(student[BEFORE_NORM], teacher[BEFORE_NORM]))
    config = toy_config({"name": "tiss", "final_norm": False}, "mit_micro")
    with pytest.raises(TissError, match=r"method\.final_norm mit_micro"):
        check_pair(config.method, config.model)


@pytest.mark.parametrize(
    ("when", "later", "there"),
    [("base", False, True), ("base", True, False), ("later", False, False), ("later", True, True)],
)
def test_l_ct_has_its_steps(contrasts, when, later, there):
    terms, *_ = contrasts(later=later, ct_when=when)
    assert ("ct" in terms) == there and ("cd" in terms) == later


@pytest.mark.parametrize(("flag", "block"), [("ct_block", 2), ("ct_block", -1), ("cd_block", 3)])
def test_a_block_that_is_not_there_is_refused(flag, block):
    depth = build_model(ModelConfig(encoder=ENCODER), ["background"], 32).encoder.depth
    assert depth == 3
    config = toy_config({"name": "tiss", flag: block}, ENCODER)
    with pytest.raises(TissError, match=rf"method\.{flag} {block}: .* it takes 0 to"):
        check_pair(config.method, config.model)


def test_only_what_changes_the_first_step_parts_first_steps():
    def first_step(**settings):
        return build_method({"name": "tiss", **settings}, 3).base_settings()

    assert first_step(ct_when="later") == first_step(ct=0.0) == {}
    assert first_step(cd_block=1, cd=0.5) == first_step()
    assert first_step(ct_block=1) != first_step() != first_step(final_norm=False)
