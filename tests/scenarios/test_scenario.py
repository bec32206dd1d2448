from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.fake import FakeData, random_data
from tiss.config import ProtocolConfig
from tiss.errors import TissError
from tiss.scenarios import Scenario, load_scenario, resolve_protocol

SMALL = {
    "train": {"a": {1}, "b": {1, 2}, "c": {2, 3}, "d": {3}, "e": set()},
    "test": {"v": {1}, "w": {2, 3}, "x": {3}, "y": set()},
}


def small(**options: object) -> Scenario:
    return load_scenario(FakeData(SMALL, classes=3), task="1-1", **options)  # type: ignore[arg-type]


def test_overlapped_and_disjoint_lists_of_known_data() -> None:
    assert [step.train.ids for step in small()] == [("a", "b"), ("b", "c"), ("c", "d")]
    assert [step.train.ids for step in small(setup="disjoint")] == [("a",), ("b",), ("c", "d")]


def test_counts_and_names_of_steps() -> None:
    steps = list(small(order="3,1,2"))
    assert [(step.old, step.new, step.seen) for step in steps] == [(1, 1, 2), (2, 1, 3), (3, 1, 4)]
    assert steps[1].old_classes == ("class3",)
    assert steps[1].new_classes == ("class1",)
    assert steps[1].future_classes == ("class2",)
    assert steps[2].classes == ("background", "class3", "class1", "class2")
    assert small(order="3,1,2").groups == ((1,), (2,), (3,))


@pytest.mark.parametrize(
    ("options", "other", "train", "test"),
    [
        ({}, 0, [0, 0, 2, 0, 255], [0, 1, 2, 0, 255]),
        ({"order": "3,1,2"}, 0, [0, 2, 0, 0, 255], [0, 2, 0, 1, 255]),
        ({"protocol": "mib"}, 0, [0, 0, 2, 0, 0], [0, 1, 2, 255, 255]),
        ({}, 255, [0, 0, 2, 0, 255], [255, 1, 2, 0, 255]),
        ({"protocol": ProtocolConfig(other="background")}, 255, [0, 0, 2, 0, 255], [0, 1, 2, 0, 255]),
        ({"protocol": "plop"}, 255, [0, 0, 2, 0, 255], [0, 1, 2, 0, 255]),  # as its published code
    ],
)
def test_channels_of_label_values_in_step_1(
    options: dict[str, Any], other: int, train: list[int], test: list[int]
) -> None:
    step = load_scenario(FakeData(SMALL, classes=3, background_in_test=other), task="1-1", **options)[1]
    assert step.train.table[[0, 1, 2, 3, 255]].tolist() == train
    assert step.test.table[[0, 1, 2, 3, 255]].tolist() == test


def test_test_images() -> None:
    assert [step.test.ids for step in small()] == [("v", "w", "x", "y")] * 3
    assert [step.test.ids for step in small(protocol="plop")] == [("v",), ("v", "w"), ("v", "w", "x")]


def test_joint_has_every_class_in_one_step_and_the_task_s_groups() -> None:
    scenario = small(setup="disjoint").joint()
    (step,) = scenario
    assert (step.old, step.new) == (1, 3)
    assert step.train.ids == ("a", "b", "c", "d")
    assert step.train.table[:4].tolist() == [0, 1, 2, 3]
    assert scenario.groups == ((1,), (2,), (3,))


def test_classes_outside_all_groups_stay_background() -> None:
    scenario = load_scenario(FakeData(SMALL, classes=3), task="class3/class1", setup="disjoint")
    assert scenario.classes == ("background", "class3", "class1")
    assert [step.train.ids for step in scenario] == [("d", "c")[::-1], ("a", "b")]
    assert scenario[1].test.table[:4].tolist() == [0, 2, 0, 1]


def test_read_gives_channels() -> None:
    sample = small(order="3,1,2")[1].train.read(1)
    assert sample.id == "b"
    assert sorted(sample.label.unique().tolist()) == [0, 2, 255]
    assert sample.label.dtype == torch.uint8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": None}, "^task is needed: fake has no task of its own"),
        ({"task": "1-1", "setup": "sequentiel"}, "^setup"),
        ({"task": "1-1", "eval_images": 0}, r"^eval\.images 0"),
        ({"task": "1-1", "holdout": 0.999999}, "^holdout"),
        ({"task": "1-1", "protocol": "plob"}, "did you mean 'plop'"),
        ({"task": "class2/class1", "setup": "disjoint"}, r"^task leaves step 0 \(disjoint\) without"),
    ],
)
def test_mistakes_name_the_setting(options: dict[str, Any], message: str) -> None:
    data = FakeData({"train": {"a": {1}, "b": {1, 2}}, "test": {"t": {1}}}, classes=2)
    with pytest.raises(TissError, match=message):
        load_scenario(data, **options)


def test_description_has_counts() -> None:
    text = str(small())
    assert "fake 1-1 overlapped, protocol paper" in text
    assert len(text.splitlines()) == 5


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_rules_hold_for_random_tasks(seed: int, data: st.DataObject) -> None:
    classes = data.draw(st.integers(2, 6))
    first = data.draw(st.integers(1, classes - 1))
    later = data.draw(st.sampled_from([b for b in range(1, classes) if (classes - first) % b == 0]))
    setup = data.draw(st.sampled_from(["overlapped", "disjoint"]))
    source = random_data(seed, classes, train=30)
    present = source.classes_present("train")
    try:
        scenario = load_scenario(
            source, task=f"{first}-{later}", setup=setup, order=f"random:{seed}", holdout=0.2
        )
    except TissError as error:
        if "without a training image" not in str(error):  # a small random set may leave a step empty
            raise
        return
    seen: set[str] = set()
    values = [frozenset(group) for group in scenario.values]
    for step in scenario:
        ids = set(step.train.ids)
        current, future = values[step.index], frozenset().union(*values[step.index + 1 :])
        assert not ids & scenario.held
        for id in present.keys() - scenario.held:
            fits = bool(present[id] & current) and (setup == "overlapped" or not present[id] & future)
            assert (id in ids) == fits
        if setup == "disjoint":
            assert not ids & seen
        seen |= ids
        label = step.train.read(0).label
        assert set(label.unique().tolist()) <= {0, 255, *range(step.old, step.seen)}
        kept = np.flatnonzero((step.train.table > 0) & (step.train.table < 255))
        assert set(kept.tolist()) == current
        assert set(step.test.ids) == scenario.held


def test_parts_can_be_set_alone() -> None:
    protocol = resolve_protocol(ProtocolConfig("mib", border="ignore", test_images="all", other="background"))
    assert (protocol.border, protocol.unseen, protocol.test_images) == ("ignore", "ignore", "all")
    assert protocol.other == "background"
