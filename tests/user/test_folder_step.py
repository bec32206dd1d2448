"""Holding out by hash, naming classes, folders without a class list."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.user.story import write_folder
from tiss.errors import TissError
from tiss.user.folder_step import LabelledFolder, choose_classes, hold_out, make_folder_step, thin_classes


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.text("abcdef", min_size=1, max_size=4), st.frozensets(st.integers(1, 3)), min_size=2, max_size=30
    )
)
def test_hold_out_leaves_every_class_something_to_train_on(present: dict[str, frozenset[int]]):
    train, held = hold_out(present, [1, 2, 3], 0.2)
    assert sorted([*train, *held]) == sorted(present)
    for value in (1, 2, 3):
        if any(value in found for found in present.values()):
            assert any(value in present[id] for id in train)
    assert hold_out(dict(reversed(present.items())), [1, 2, 3], 0.2) == (train, held)


def test_a_folder_s_own_test_images_are_used(tmp_path: Path):
    root = write_folder(tmp_path / "mine", ["disc"], 6)
    for part in ("images", "masks"):
        files = sorted((root / part).iterdir())
        for name, chosen in (("train", files[:4]), ("val", files[4:])):
            (root / part / name).mkdir()
            for path in chosen:
                path.rename(root / part / name / path.name)
    found = make_folder_step(LabelledFolder(str(root)), ["background"], ["disc"], 0)
    assert (len(found.train), len(found.test)) == (4, 2)
    assert found.test.dataset.table(["background", "disc"])[1] == {"background", "disc"}


def test_masks_without_a_class_list_are_numbered_as_the_names(tmp_path: Path):
    root = write_folder(tmp_path / "mine", ["star", "moon"], 6, listed=[])
    assert LabelledFolder(str(root), ["star", "moon"]).classes == ("star", "moon")
    with pytest.raises(TissError, match="class list"):
        LabelledFolder(str(root))


@pytest.mark.parametrize("text", ["", "star,,moon", "star,star", "background"])
def test_impossible_names(text: str):
    with pytest.raises(TissError) as caught:
        choose_classes(text, ["star", "moon"], ["background", "disc"], "model")
    assert caught.value.setting == "classes"


def test_classes_that_are_narrower_than_half_a_patch(tmp_path: Path):
    root = write_folder(tmp_path / "mine", ["disc", "bar"], 4)
    for path in (root / "masks").iterdir():
        mask = np.zeros((32, 32), np.uint8)
        mask[4:14, 4:14], mask[:, 24:27] = 1, 2
        Image.fromarray(mask).save(path)
    step = make_folder_step(LabelledFolder(str(root)), ["background"], ["disc", "bar"], 0)
    assert thin_classes(step, 32, 16) == ["disc", "bar"]
    assert thin_classes(step, 32, 8) == ["bar"]
    assert thin_classes(step, 64, 8) == []
