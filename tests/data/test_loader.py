import hashlib
import multiprocessing
import os
import signal
from collections.abc import Iterable

import pytest
import torch

from tests.data.fake import FakeData, random_data
from tiss.data.augment import AugmentSettings
from tiss.data.base import Batch, Sample
from tiss.data.loader import TestLoader, TrainLoader
from tiss.data.shapes import Shapes
from tiss.errors import TissError
from tiss.scenarios import Split, load_scenario

CUTS = AugmentSettings(24)
# of ids, images and labels, from version 0.1.0
GOLDEN = {
    "plain": "ff5e38423457cb43",
    "photometric": "7e99e446fa986f51",
    "crop": "6aa079fe8fef2cfb",
    "slide": "755c6c4867c5791f",
}


def train_split(data: FakeData | None = None) -> Split:
    return load_scenario(data or random_data(0), task="2-1")[1].train


def loader(split: Split | None = None, **options: object) -> TrainLoader:
    settings = {"batch": 4, "seed": 3, "step": 1, "kind": "memory"} | options
    return TrainLoader(split or train_split(), CUTS, **settings)  # type: ignore[arg-type]


def same(a: list[Batch], b: list[Batch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x.image, y.image) and torch.equal(x.label, y.label) and x.ids == y.ids
        for x, y in zip(a, b, strict=True)
    )


def test_batches_keep_the_contract() -> None:
    train = loader()
    batches = list(train.epoch(0))
    assert len(batches) == len(train) == len(train_split()) // 4
    for batch in batches:
        assert batch.image.shape == (4, 3, 24, 24)
        assert batch.image.dtype == torch.uint8
        assert batch.label.shape == (4, 24, 24)
        assert batch.label.dtype == torch.int64
        assert set(batch.label.unique().tolist()) <= {0, 3, 255}
    ids = [id for batch in batches for id in batch.ids]
    assert len(set(ids)) == len(ids)


def digest(batches: Iterable[Batch]) -> str:
    found = hashlib.sha256()
    for batch in batches:
        found.update(
            " ".join(batch.ids).encode() + batch.image.numpy().tobytes() + batch.label.numpy().tobytes()
        )
    return found.hexdigest()[:16]


@pytest.mark.parametrize("kind", ["memory", "workers"])
def test_order_augmentations_and_pixels_are_those_of_the_first_version(kind: str) -> None:
    step = load_scenario(Shapes(size=48, train=80, test=16), task="4-2")[1]
    loud = AugmentSettings(32, resize=40, scale=(0.5, 1.5), photometric=True)
    found = {}
    for name, settings in (("plain", AugmentSettings(40)), ("photometric", loud)):
        train = TrainLoader(step.train, settings, batch=4, seed=3, step=1, kind=kind, workers=0)  # type: ignore[arg-type]
        found[name] = digest([*train.epoch(0), *train.epoch(2)])
    for mode in ("crop", "slide"):
        found[mode] = digest(TestLoader(step.test, 32, mode=mode, batch=4, kind=kind, workers=0))  # type: ignore[arg-type]
    assert found == GOLDEN


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_and_memory_give_the_same_batches(workers: int) -> None:
    expected = [list(loader().epoch(epoch)) for epoch in (0, 1)]
    assert not same(*expected)
    with loader(kind="workers", workers=workers) as processes:
        assert processes.kind == "workers"
        assert [same(list(processes.epoch(epoch)), expected[epoch]) for epoch in (0, 1)] == [True, True]


def test_resumed_epoch_is_the_rest_of_the_whole() -> None:
    whole = list(loader().epoch(2))
    assert same(list(loader().epoch(2, start=1)), whole[1:])
    with loader(kind="workers", workers=2) as processes:
        next(processes.epoch(2))  # left off in the middle: what was prefetched must not leak into the next
        assert same(list(processes.epoch(2, start=1)), whole[1:])


@pytest.mark.parametrize(("batch", "world"), [(4, 1), (4, 2), (6, 3), (64, 2)])
def test_once_gives_every_image_exactly_once(batch: int, world: int) -> None:
    split = train_split()
    found = [list(loader(batch=batch, rank=rank, world=world).once()) for rank in range(world)]
    ids = [id for share in found for one in share for id in one.ids]
    assert sorted(ids) == sorted(split.ids)
    assert all(len(one.ids) == len(one.image) == len(one.label) for share in found for one in share)
    first = next(loader(batch=batch, world=world).epoch(0))
    kept = len(found[0][0].ids)
    assert torch.equal(found[0][0].image, first.image[:kept])


@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (4, 1), (2, 2)])
def test_parts_and_ranks_side_by_side_are_the_single_process(world: int, accumulate: int) -> None:
    ranks = [list(loader(rank=rank, world=world, accumulate=accumulate).epoch(1)) for rank in range(world)]
    parts = [share[i] for i in range(len(ranks[0])) for share in ranks]
    for i, batch in enumerate(loader().epoch(1)):
        these = parts[i * world * accumulate : (i + 1) * world * accumulate]
        assert torch.equal(torch.cat([part.image for part in these]), batch.image)
        assert torch.equal(torch.cat([part.label for part in these]), batch.label)
    assert len(parts) == world * accumulate * len(loader())


def test_a_step_smaller_than_a_batch_cycles() -> None:
    data = FakeData({"train": {"a": {1}, "b": {1}, "c": {2}}, "test": {"t": {1}}}, classes=2)
    split = load_scenario(data, task="1-1")[0].train
    (batch,) = loader(split, batch=5).epoch(0)
    assert sorted(batch.ids) in (["a", "a", "a", "b", "b"], ["a", "a", "b", "b", "b"])
    assert batch.ids[:2] == batch.ids[2:4]
    assert not torch.equal(batch.image[0], batch.image[2])  # the same sample, cut again


def test_memory_decodes_each_sample_once_for_all_steps() -> None:
    data = random_data(1)
    scenario = load_scenario(data, task="2-1")
    for step in scenario:
        train = loader(step.train, batch=2, step=step.index)
        assert all(list(train.epoch(epoch)) for epoch in range(2))
    assert len(data.reads) == len(set(data.reads)) == len(data.ids("train"))


def test_auto_takes_memory_when_it_fits_and_workers_when_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loader(kind="auto").kind == "memory"
    monkeypatch.setattr("tiss.data.store.free_memory", lambda: 1000.0)
    with loader(kind="auto", workers=0) as train:
        assert train.kind == "workers"


@pytest.mark.parametrize("kind", ["memory", "workers"])
def test_broken_file_stops_with_its_name(kind: str) -> None:
    split = train_split(random_data(0, broken=("train004",)))
    assert "train004" in split.ids
    with pytest.raises(TissError, match=r"^train004\.jpg: the file"), loader(split, kind=kind) as train:
        list(train.epoch(0))


def test_batch_must_split_evenly() -> None:
    with pytest.raises(TissError, match=r"train\.batch 4"):
        loader(world=3)


def test_closing_ends_the_processes_and_leaves_the_global_stream_alone() -> None:
    before = torch.random.get_rng_state()
    with loader(kind="workers", workers=2) as train:
        next(train.epoch(0))
        assert len(multiprocessing.active_children()) == 2
    assert multiprocessing.active_children() == []
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_killed_process_is_explained() -> None:
    class Deadly(FakeData):
        def read(self, split: str, id: str) -> Sample:
            if multiprocessing.parent_process() is not None:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().read(split, id)

    data = Deadly({"train": {"a": {1}}, "test": {"t": {1}}}, classes=1)
    split = load_scenario(data, task="1-1")[0].train
    with (
        loader(split, kind="workers", workers=1, batch=1) as train,
        pytest.raises(TissError, match=r"train\.workers"),
    ):
        next(train.epoch(0))


@pytest.mark.slow
def test_spawned_processes_give_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiss.data.loader.START_METHOD", "spawn")
    with loader(kind="workers", workers=1) as processes:
        assert same(list(processes.epoch(0)), list(loader().epoch(0)))


def test_threads_make_the_batches_for_another_device_in_order() -> None:
    expected = [batch.ids for batch in loader().epoch(0)]
    made = list(loader(device="meta").epoch(0))
    assert [batch.ids for batch in made] == expected
    assert made[0].image.device.type == "meta"


def make_test_loader(split: Split, **options: object) -> TestLoader:
    return TestLoader(split, 16, **({"batch": 3, "kind": "memory"} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"kind": "memory"}, {"kind": "workers", "workers": 2}])
def test_every_test_image_once_over_ranks(options: dict[str, object]) -> None:
    split = load_scenario(random_data(0), task="2-1")[1].test
    ids: list[str] = []
    for rank in range(3):
        with make_test_loader(split, rank=rank, world=3, **options) as test:
            batches = list(test)
            assert len(batches) == len(test)
            assert all(batch.image.shape[1:] == (3, 16, 16) for batch in batches)
            ids += [id for batch in batches for id in batch.ids]
    assert sorted(ids) == sorted(split.ids)


def test_slide_mode_keeps_the_label_as_it_is() -> None:
    split = load_scenario(random_data(0), task="2-1")[1].test
    for index, batch in enumerate(make_test_loader(split, mode="slide")):
        sample = split.read(index)
        assert batch.ids == [sample.id]
        assert torch.equal(batch.label[0], sample.label.long())
        assert min(batch.image.shape[2:]) == 16
    assert index == len(split) - 1
