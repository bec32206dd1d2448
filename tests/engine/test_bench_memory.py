"""What fits on a card follows from two measured peaks."""

from __future__ import annotations

import pytest
import torch

from tiss.cli.main import main
from tiss.engine.bench import RESERVE, fits


def test_the_largest_batch_fits_and_the_next_does_not():
    fixed, each = 1.3, 0.37
    found = fits((8, 24), (fixed + each * 8, fixed + each * 24))
    assert found["fixed_gib"] == pytest.approx(fixed)
    assert found["gib_per_image"] == pytest.approx(each)
    for card, batch in found["largest_batch"].items():
        room = int(card) - RESERVE
        assert fixed + each * batch <= room < fixed + each * (batch + 1)


def test_a_model_that_does_not_fit_gets_no_batch():
    assert fits((2, 6), (9.0, 10.0))["largest_batch"]["8"] == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert main(["bench", "--suite", "memory"]) == 2
    assert "no CUDA device" in capsys.readouterr().err
