"""Tasks, orders, setups and lists of images."""

import io
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from tests.data.fake import random_data
from tiss.errors import TissError
from tiss.randomness import stream
from tiss.scenarios import load_scenario, read_lists
from tiss.scenarios.task import held_out, parse_order, parse_task, partition, task_name

ANIMALS = ["cat", "dog", "person", "tv"]
VOC = [f"c{value}" for value in range(1, 21)]


@pytest.mark.parametrize(
    ("first", "later", "steps"),
    [(15, 1, 6), (15, 5, 2), (20, 1, 1), (10, 1, 11), (5, 3, 6), (2, 2, 10), (100, 5, 11)],
)
def test_a_b_uses_all_classes_in_order(first: int, later: int, steps: int) -> None:
    names = [f"c{value}" for value in range(1, 21 if first < 100 else 151)]
    groups = parse_task(f"{first}-{later}", names)
    assert list(chain(*groups)) == list(range(1, len(names) + 1))
    assert [len(group) for group in groups] == [first] + [later] * (steps - 1)
    assert task_name(groups, names) == f"{first}-{later}"


def test_order_by_name_number_and_seed() -> None:
    assert parse_task("2-1", ANIMALS, "tv,1,dog,person") == ((4, 1), (2,), (3,))
    order = parse_order("random:3", VOC)
    assert sorted(order) == list(range(1, 21))
    assert order == parse_order("random:3", VOC)
    assert order != parse_order("random:4", VOC)


def test_explicit_groups_as_text_and_lists() -> None:
    assert parse_task("cat,dog/person/tv", ANIMALS) == ((1, 2), (3,), (4,))
    assert parse_task([["tv"], ["cat"]], ANIMALS) == ((4,), (1,))
    assert task_name(((4,), (1,)), ANIMALS) == "tv/cat"
    assert task_name(((1,), (2, 3), (4,)), ANIMALS) == "cat/dog,person/tv"


@pytest.mark.parametrize(
    ("task", "order", "said"),
    [
        ("cat,dgo", None, "did you mean 'dog'"),
        ("cat/cat,dog", None, "'cat' is in groups 0 and 1"),
        ("cat,cat/dog", None, "'cat' is in group 0, twice"),
        ("2-3", None, "2-1, 2-2, 1-3"),
        ("9-1", None, "does not fit 4 classes"),
        ("0-2", None, "does not fit 4 classes"),
        ("2-0", None, "does not fit 4 classes"),
        ("cat//dog", None, "empty class name"),
        ("1/7", None, "no class number 7"),
        ([], None, "without classes"),
        ("2-1", "cat,dog", "leaves out person, tv"),
        ("2-1", "cat,cat,dog,tv", "'cat' twice"),
        ("2-1", "random:x", "whole number"),
        ("cat/dog", "random:0", "own order"),
        ("3", None, "write 3-1 for 3 classes"),
        ("2_1", None, "write 2-1"),
        ("2-1s", None, "write 2-1"),
    ],
)
def test_mistakes_are_one_line(task: str, order: str | None, said: str) -> None:
    with pytest.raises(TissError) as caught:
        parse_task(task, ANIMALS, order)
    assert said in str(caught.value)


def test_no_classes() -> None:
    with pytest.raises(TissError, match="class list is empty"):
        parse_task("1-1", [])


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


def test_partitioned_and_sequential() -> None:
    data = random_data(0)
    parted = load_scenario(data, task="2-1", setup="partitioned")
    assert sorted(id for ids in parted.lists for id in ids) == data.ids("train")
    plain, labelled = (load_scenario(data, task="2-1", setup=setup) for setup in ("disjoint", "sequential"))
    assert labelled.lists == plain.lists
    assert plain[2].train.table[:5].tolist() == [0, 0, 0, 0, 4]
    assert labelled[2].train.table[:5].tolist() == [0, 1, 2, 3, 4]


def test_a_trial_run_tests_few_images() -> None:
    scenario = load_scenario(random_data(0), task="2-1", eval_images=3)
    assert [len(step.test) for step in scenario] == [3, 3, 3]
    assert "tested on 3 images only" in str(scenario)
    assert len(load_scenario(random_data(0), task="2-1", eval_images=99)[0].test) == 8


IDS = ["a", "b", "c", "d"]


def test_indices_and_ids(tmp_path: Path) -> None:
    np.save(tmp_path / "train-0.npy", np.array([3, 0]))
    (tmp_path / "train-1.txt").write_text("c\nb\n")
    (tmp_path / "train-2.txt").write_text("1\n2\n")
    assert read_lists(tmp_path, 3, IDS[::-1]) == [["a", "d"], ["b", "c"], ["b", "c"]]


def test_scenario_uses_them_and_keeps_the_holdout_out(tmp_path: Path) -> None:
    data = random_data(0)
    chosen = [ids[:4] for ids in load_scenario(data, task="2-1").lists]
    for step, ids in enumerate(chosen):
        np.save(tmp_path / f"train-{step}.npy", np.array([data.ids("train").index(id) for id in ids]))
    scenario = load_scenario(data, task="2-1", lists=tmp_path)
    assert [step.train.ids for step in scenario] == chosen
    held = load_scenario(data, task="2-1", lists=tmp_path, holdout=0.4)
    assert [step.train.ids for step in held] == [
        tuple(id for id in ids if id not in held.held) for ids in chosen
    ]


def saved(array: object, cut: int = 0) -> bytes:
    """The bytes of a .npy file, without the last `cut` of them."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()[: -cut or None]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no train-0.npy or train-0.txt"),
        ({"train-0.npy": saved(np.array([{}], dtype=object))}, "not a readable .npy"),
        ({"train-0.npy": saved(np.array([0, 4]))}, "index 4, but the data set has 4"),
        ({"train-0.npy": saved(np.array([0.5]))}, "whole numbers"),
        ({"train-0.npy": saved(np.arange(1000), cut=100)}, "not a readable .npy"),
        ({"train-0.npy": b"PK\x03\x04 an archive"}, "not a readable .npy"),
        ({"train-0.txt": b"a\nzz\n"}, "zz is no training id"),
        ({"train-0.txt": b"9" * 5000}, "no training id"),
        ({"train-0.txt": "²".encode()}, "no training id"),
        ({"train-0.txt": b"1 " + b"0" * 12}, "no training id"),
        ({"train-0.txt": b"a\na\n"}, "a is in the list twice"),
        ({"train-0.txt": b""}, "the list is empty"),
        ({"train-0.txt": b"a", "train-1.txt": b"b"}, "the task has 1 steps"),
    ],
)
def test_bad_lists_are_one_line(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TissError) as caught:
        read_lists(tmp_path, 1, IDS)
    assert said in str(caught.value)


def test_lists_of_another_order_are_refused(tmp_path: Path) -> None:
    scenario = load_scenario(random_data(0), task="2-1")
    for step, ids in enumerate(scenario.lists):
        (tmp_path / f"train-{step}.txt").write_text("\n".join(ids))
    assert load_scenario(random_data(0), task="2-1", lists=tmp_path).lists == scenario.lists
    (tmp_path / "train-1.txt").write_text("\n".join(set(random_data(0).ids("train")) - {*scenario.lists[1]}))
    with pytest.raises(TissError, match=r"lists .*: only 0 of the \d+ images of step 1 hold a class"):
        load_scenario(random_data(0), task="2-1", lists=tmp_path)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(TissError, match="lists"):
        read_lists(tmp_path / "none", 1, IDS)
