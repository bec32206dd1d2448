from __future__ import annotations

import pytest

from tests.data.fake import random_data
from tiss.errors import TissError
from tiss.randomness import stream
from tiss.scenarios import load_scenario
from tiss.scenarios.selection import held_out, partition
from tiss.scenarios.task import parse_task


def crowded(images: int = 2000, classes: int = 30) -> dict[str, frozenset[int]]:
    """Images as ADE20K's: a few classes nearly everywhere, most of them rare."""
    rng = stream(0, "crowded")
    chance = 0.9 / (1 + rng.permutation(classes)) ** 0.8
    held = rng.random((images, classes)) < chance
    return {f"i{i:04d}": frozenset((row.nonzero()[0] + 1).tolist()) for i, row in enumerate(held)}


def test_partition_gives_each_image_to_one_step_and_each_class_enough() -> None:
    present = crowded()
    groups = parse_task("20-5", [f"c{i}" for i in range(30)])
    lists = partition(present, groups)
    together = [id for ids in lists for id in ids]
    assert sorted(together) == sorted(id for id, values in present.items() if values)
    for group, ids in zip(groups, lists, strict=True):
        assert ids == sorted(ids)
        for id in ids:
            assert present[id] & set(group)
        for value in group:
            assert sum(value in present[id] for id in ids) >= 50
    assert lists == partition(dict(reversed(present.items())), groups)
    assert len(lists[0]) > len(lists[1]) > 200  # shares follow the groups' sizes


def test_scarce_classes_get_what_there_is() -> None:
    present = {"a": frozenset({1}), "b": frozenset({1, 2}), "c": frozenset({2}), "d": frozenset[int]()}
    lists = partition(present, ((1,), (2,)), least=50)
    assert sorted(id for ids in lists for id in ids) == ["a", "b", "c"]


def test_ade20k_disjoint_is_a_partition_and_other_data_is_not() -> None:
    steps = {
        name: load_scenario(random_data(0, name=name), task="2-1", setup="disjoint")
        for name in ("ade20k", "fake")
    }
    assert sum(map(len, steps["ade20k"].lists)) == 20
    assert steps["ade20k"].lists != steps["fake"].lists


def test_holdout_is_a_share_by_hash() -> None:
    ids = [f"2007_{i:06d}" for i in range(1000)]
    held = held_out(ids, 0.2)
    assert len(held) == 200
    assert held == held_out(ids[::-1], 0.2)
    assert held < held_out(ids, 0.3)
    assert held_out(ids, 0.0) == frozenset()


@pytest.mark.parametrize("share", [-0.1, 1.0, 0.999999])
def test_holdout_must_leave_something(share: float) -> None:
    with pytest.raises(TissError, match="holdout"):
        held_out(["a", "b"], share)


def test_setup_must_be_known() -> None:
    with pytest.raises(TissError, match="setup"):
        load_scenario(random_data(0), task="2-1", setup="sequential")
