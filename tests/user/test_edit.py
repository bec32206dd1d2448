"""`forget` and `merge`: identities of sums, through the commands."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.user.story import SOLVED, Refused, Said, extending, tiss, write_folder
from tiss.engine.run_folder import StepFolder
from tiss.models import SegmentationModel


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base of two classes; star, moon and both in either order taught to it."""
    folder = tmp_path_factory.mktemp("taught")
    write_folder(folder / "warehouse", ["disc", "square"], 16)
    write_folder(folder / "stars", ["star"], 8, seed=1)
    write_folder(folder / "moons", ["moon"], 8, seed=2)
    tiss("train", folder / "warehouse", "--out", folder / "base", *SOLVED)
    for model, data, out in (
        ("base", "stars", "star"),
        ("base", "moons", "moon"),
        ("star", "moons", "star-moon"),
        ("moon", "stars", "moon-star"),
    ):
        tiss(*extending(folder / model, folder / data, folder / out, "--method", "analytic"))
    return folder


def head(folder: Path) -> dict[str, torch.Tensor]:
    """Rows and bias of the head by class name."""
    model = SegmentationModel.from_pretrained(folder).requires_grad_(False)
    rows, biases = model.head.joined()
    return {
        name: torch.cat([row, bias[None]])
        for name, row, bias in zip(model.classes, rows, biases, strict=True)
    }


@pytest.mark.parametrize("names", [("star", "moon"), ("moon", "star")])
def test_merging_is_teaching_both(taught: Path, tmp_path: Path, said: Said, names: tuple[str, str]) -> None:
    text = said("merge", *(taught / name for name in names), "--out", tmp_path / "both")
    assert "merged on the base" in text and "4 classes: disc, square" in text
    found = head(tmp_path / "both")
    assert [*found] == ["background", "disc", "square", *names]
    for order in ("star-moon", "moon-star"):
        expected = head(taught / order)
        for name, row in found.items():
            # few patches for so many features: the rounding of sums to float32 is magnified
            assert float((row - expected[name]).norm() / row.norm()) < 3e-2, (order, name)


def test_forgetting_keeps_the_others_and_can_go_on(taught: Path, tmp_path: Path, said: Said) -> None:
    assert "forgot star; 3 classes: disc, square, moon" in said(
        "forget", taught / "star-moon", "--classes", "star", "--out", tmp_path / "less"
    )
    model = SegmentationModel.from_pretrained(tmp_path / "less")
    assert model.classes == ["background", "disc", "square", "moon"]
    state = StepFolder(tmp_path / "less").method_state()
    assert state["counts"][0] > 0, "what was star is background for certain"
    assert "star" in said(*extending(tmp_path / "less", taught / "stars", tmp_path / "again"))
    whole, back = head(taught / "moon-star"), head(tmp_path / "again")
    assert whole.keys() == back.keys()


def test_what_is_refused(taught: Path, tmp_path: Path, refused: Refused, story: Path) -> None:
    out = ["--out", tmp_path / "out"]
    assert "unknown class 'stra'" in refused("forget", taught / "star", "--classes", "stra", *out)
    assert "leave one" in refused("forget", taught / "base", "--classes", "disc,square", *out)
    assert "has no sums" in refused("forget", story / "third", "--classes", "disc", *out)
    assert "both have a class 'moon'" in refused("merge", taught / "star-moon", taught / "moon-star", *out)
    shutil.copytree(taught / "moon", tmp_path / "moved")
    assert "no common base" in refused("merge", taught / "star", tmp_path / "moved", *out)
    tiss("merge", taught / "star", tmp_path / "moved", "--base", taught / "base", *out)
    assert (tmp_path / "out" / "README.md").is_file()
    assert "exists already" in refused("forget", taught / "star", "--classes", "star", *out)


def test_more_images_of_a_known_class(taught: Path, tmp_path: Path, said: Said) -> None:
    """The same head as from all its images at once; no class is added, and the others keep their sums."""
    write_folder(tmp_path / "more", ["star"], 12, seed=3)
    words = extending(taught / "star", tmp_path / "more", tmp_path / "better", "--classes", "star")
    assert "trained star on" in said(*words)
    model = SegmentationModel.from_pretrained(tmp_path / "better")
    assert model.classes == ["background", "disc", "square", "star"]
    before, after = (StepFolder(path).method_state() for path in (taught / "star", tmp_path / "better"))
    assert torch.equal(before["counts"][:3], after["counts"][:3])
    assert after["counts"][3] > before["counts"][3]
    assert after["labelled"].tolist() == [[0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]]


def test_other_methods_only_add_classes(story: Path, tmp_path: Path, refused: Refused) -> None:
    words = extending(story / "second", story / "tonight", tmp_path / "x", "--classes", "star")
    assert "only adds classes" in refused(*words, "--method", "recall")
