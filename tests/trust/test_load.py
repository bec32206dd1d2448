"""A few visitors at once for a few seconds; the long version is tools/load_test.py."""

from __future__ import annotations

import pytest
from tools.load_test import Sample, growth, load


def test_visitors_at_once_get_their_answers() -> None:
    pytest.importorskip("gradio")
    tally, samples = load(users=6, seconds=3)
    assert tally.errors == []
    assert len(tally.uploads) >= 6
    assert len(tally.slides) == len(tally.uploads)
    assert samples


def test_growth_after_the_warm_up_is_seen() -> None:
    samples = [Sample(second, 100 + max(0, 50 - second), 5, 9) for second in range(100)]
    assert growth(samples)["megabytes"] == (120.5, 100.0)
    samples = [Sample(second, 100 + second, 5, 9) for second in range(100)]
    assert growth(samples)["megabytes"] == (129.5, 189.5)
