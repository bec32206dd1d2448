from __future__ import annotations

import pytest
import torch

from tests.data.fake import random_data
from tiss.data.augment import AugmentSettings
from tiss.data.loader import TestLoader, TrainLoader
from tiss.data.memory import MemoryStore, free_memory
from tiss.data.source import FileSource
from tiss.scenarios import load_scenario


def never(place: int, message: str) -> str | None:
    raise AssertionError(message)


def test_pictures_are_where_the_store_says_however_it_grew() -> None:
    files = FileSource(random_data(0), "train")
    store = MemoryStore(files)
    ids = files.dataset.ids("train")
    store.load(ids[:3], capacity=10)
    store.load(ids[2:9])
    store.load(ids)
    found = store.collect(ids[::-1], never)
    for id, offset, (height, width) in zip(found.ids, found.offsets, found.sizes, strict=True):
        pixels, size = files.read(id)
        assert size == (height, width)
        assert torch.equal(found.buffer[offset : offset + height * width], pixels)
    assert store.used == sum(height * width for height, width in found.sizes)


def test_progress_counts_to_the_end() -> None:
    calls: list[tuple[int, int]] = []
    files = FileSource(random_data(0), "train")
    MemoryStore(files).load(files.dataset.ids("train"), lambda done, total: calls.append((done, total)))
    assert calls[-1] == (20, 20)


def test_pixels_are_copied_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy dealt out to all cores leaves them waiting for the next one, and the decoding threads without."""
    files = FileSource(random_data(0), "train")
    store, seen = MemoryStore(files), set()
    add = store._add
    monkeypatch.setattr(store, "_add", lambda *sample: (seen.add(torch.get_num_threads()), add(*sample)))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        store.load(files.dataset.ids("train"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == {1}


def test_free_memory_is_of_this_machine() -> None:
    assert 1e6 < free_memory() < 1e14


@pytest.mark.gpu
def test_gpu_store_gives_the_cpu_s_batches_without_waiting() -> None:
    scenario = load_scenario(random_data(0), task="2-1")
    settings = AugmentSettings(24, photometric=True)

    def loaders(device: str) -> tuple[TrainLoader, TestLoader]:
        step = scenario[0]
        train = TrainLoader(step.train, settings, batch=4, seed=0, step=0, kind="memory", device=device)
        return train, TestLoader(step.test, 16, batch=4, kind="memory", device=device)

    (train, test), (train_gpu, test_gpu) = loaders("cpu"), loaders("cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = [*train_gpu.epoch(0), *test_gpu]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for expected, batch in zip([*train.epoch(0), *test], made, strict=True):
        assert batch.image.device.type == "cuda"
        assert torch.equal(expected.label, batch.label.cpu())
        assert (expected.image.int() - batch.image.cpu().int()).abs().max() <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["workers", "memory"])
def test_batches_from_the_machine_s_memory_reach_the_gpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiss.data.placement.GPU_SHARE", 0.0)
    step = load_scenario(random_data(0), task="2-1")[0]
    options = {"batch": 4, "seed": 0, "step": 0}
    cpu = TrainLoader(step.train, AugmentSettings(24), kind="memory", **options)  # type: ignore[arg-type]
    with TrainLoader(step.train, AugmentSettings(24), kind=kind, workers=2, device="cuda", **options) as gpu:  # type: ignore[arg-type]
        for expected, batch in zip(cpu.epoch(0), gpu.epoch(0), strict=True):
            assert torch.equal(expected.image, batch.image.cpu())
            assert torch.equal(expected.label, batch.label.cpu())
