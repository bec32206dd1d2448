from __future__ import annotations

import pytest

from tiss.errors import TissError
from tiss.scenarios.task import parse_order, parse_task, task_name

ANIMALS = ["cat", "dog", "person", "tv"]
VOC = [f"c{value}" for value in range(1, 21)]


def test_a_b_uses_all_classes_in_order() -> None:
    assert parse_task("15-1", VOC) == (tuple(range(1, 16)), (16,), (17,), (18,), (19,), (20,))
    assert parse_task("15-5", VOC) == (tuple(range(1, 16)), (16, 17, 18, 19, 20))
    assert parse_task("20-1", VOC) == (tuple(range(1, 21)),)


def test_order_by_name_number_and_seed() -> None:
    assert parse_task("2-1", ANIMALS, "tv,1,dog,person") == ((4, 1), (2,), (3,))
    order = parse_order("random:3", VOC)
    assert sorted(order) == list(range(1, 21))
    assert order == parse_order("random:3", VOC)
    assert order != parse_order("random:4", VOC)


def test_explicit_groups_as_text_and_lists() -> None:
    assert parse_task("cat,dog/person/tv", ANIMALS) == ((1, 2), (3,), (4,))
    assert parse_task([["tv"], ["cat"]], ANIMALS) == ((4,), (1,))


def test_names_of_tasks() -> None:
    assert task_name(parse_task("15-1", VOC), VOC) == "15-1"
    assert task_name(parse_task("20-1", VOC), VOC) == "20-1"
    assert task_name(parse_task("tv/cat", ANIMALS), ANIMALS) == "tv/cat"


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
    ],
)
def test_mistakes_are_one_line(task: str, order: str | None, said: str) -> None:
    with pytest.raises(TissError) as caught:
        parse_task(task, ANIMALS, order)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_classes() -> None:
    with pytest.raises(TissError, match="class list is empty"):
        parse_task("1-1", [])
