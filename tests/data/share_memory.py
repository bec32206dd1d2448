"""Started in two processes by test_shared.py: one decodes, both make the batches that a process alone makes."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.data.fake import random_data
from tiss.data.augment import AugmentSettings
from tiss.data.loader import TestLoader, TrainLoader
from tiss.data.placement import PROBE
from tiss.data.shared import SharedStore
from tiss.scenarios import load_scenario


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = random_data(0)
    scenario, alone = load_scenario(data, task="2-1"), load_scenario(random_data(0), task="2-1")
    for index, step in enumerate(scenario):
        options = {"batch": 4, "seed": 0, "step": index, "rank": rank, "world": 2}
        data.reads.clear()
        settings = AugmentSettings(24)
        loader = TrainLoader(step.train, settings, kind="memory", **options)  # type: ignore[arg-type]
        assert isinstance(loader._store, SharedStore)
        if rank == 1:
            assert len(data.reads) <= (PROBE if index == 0 else 0), data.reads
        assert all(id in loader._store.places for id in step.train.ids)
        plain = TrainLoader(alone[index].train, settings, kind="workers", workers=0, **options)  # type: ignore[arg-type]
        for one, two in zip(loader.epoch(1), plain.epoch(1), strict=True):
            assert one.ids == two.ids
            assert torch.equal(one.image, two.image)
            assert torch.equal(one.label, two.label)
        test = TestLoader(step.test, 16, rank=rank, world=2, kind="memory")
        list(test)
        assert sorted(test._store.places) == sorted(step.test.ids[rank::2])  # its own share and no more
    check_that_pages_are_the_same(loader._store)
    dist.barrier()
    dist.destroy_process_group()


def check_that_pages_are_the_same(store: SharedStore) -> None:
    if store.team.is_leader:
        store.buffer[0] = 12345
    dist.barrier()
    assert store.buffer[0] == 12345


if __name__ == "__main__":
    main()
