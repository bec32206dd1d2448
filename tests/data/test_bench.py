from __future__ import annotations

from tests.data.fake import random_data
from tiss.data.bench import measure_loaders
from tiss.scenarios import load_scenario


def test_every_loader_is_measured_and_each_picture_decoded_once_for_memory() -> None:
    data = random_data(0)
    split = load_scenario(data, task="2-1")[0].train
    figures = measure_loaders(split, crops=(16, 24), workers=(1,), batch=4, seconds=0.05)
    assert [(figure.loader, figure.crop) for figure in figures] == [
        ("workers 1", 16),
        ("memory (cpu)", 16),
        ("workers 1", 24),
        ("memory (cpu)", 24),
    ]
    assert all(figure.images_per_second > 0 and figure.start_seconds > 0 for figure in figures)
    assert len(data.reads) == len(set(data.reads))  # the worker's reads happen in its own process
