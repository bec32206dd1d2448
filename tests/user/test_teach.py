"""`Teaching`: painted images become a model as fast as its head is solved; what is saved is like any other model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiss
from tests.user.story import Refused, Said, extending
from tiss.data.folder import Folder
from tiss.engine.predictor import Predictor
from tiss.engine.run_folder import StepFolder
from tiss.models import from_pretrained


def truth(solved: Path, name: str) -> np.ndarray:
    return np.asarray(Image.open(solved / "stars" / "masks" / f"{name}.png")) == 1


@pytest.fixture
def teaching(solved: Path) -> tiss.Teaching:
    return tiss.Teaching(solved / "base", [str(solved / "stars")], device="cpu")


def paint_all(teaching: tiss.Teaching, solved: Path, count: int) -> list[str]:
    names = list(teaching.images)[:count]
    for name in names:
        teaching.paint(name, truth(solved, name))
    return names


def test_a_painted_class_appears_on_all_images_and_the_old_ones_stay(
    teaching: tiss.Teaching, solved: Path
) -> None:
    before = {name: teaching.predict(name).mask for name in teaching.images}
    painted = paint_all(teaching, solved, 6)
    result = teaching.teach("star")
    both = either = 0
    for name in teaching.images.keys() - painted:
        found = teaching.predict(name).mask == 3
        both += (found & truth(solved, name)).sum()
        either += (found | truth(solved, name)).sum()
    assert both / either > 0.2
    assert [one.name for one in result.classes] == ["background", "disc", "square", "star"]
    assert result.images == len(teaching.images) and result.same > 60
    for name, old in before.items():
        assert np.array_equal(teaching.predict(name, before=True).mask, old)
        assert np.array_equal(teaching.images[name].changed, old != teaching.predict(name).mask)


def test_what_is_shown_is_what_the_saved_model_says(
    teaching: tiss.Teaching, solved: Path, tmp_path: Path, said: Said
) -> None:
    painted = paint_all(teaching, solved, 4)
    teaching.teach("star")
    teaching.save(tmp_path / "taught", tmp_path / "labels")
    predictor = Predictor(from_pretrained(tmp_path / "taught"))
    for name, one in teaching.images.items():
        assert np.array_equal(predictor.predict(one.path).mask, teaching.predict(name).mask)
    labels = Folder(str(tmp_path / "labels"))
    assert sorted(labels.ids("train")) == sorted(painted) and labels.classes == ("star",)
    for name in painted:
        assert np.array_equal(labels.read("train", name).label.numpy() == 1, truth(solved, name))
    step = StepFolder(tmp_path / "taught")
    record = step.model().record
    assert record["parent"]["name"] == "base" and record["history"][-1]["classes"] == ["star"]
    assert (tmp_path / "taught" / "report.html").is_file()
    assert "forgot star" in said(
        "forget", tmp_path / "taught", "--classes", "star", "--out", tmp_path / "less"
    )
    assert "moon" in said(*extending(tmp_path / "taught", solved / "moons", tmp_path / "more"))


def test_teaching_again_starts_from_the_old_model(teaching: tiss.Teaching, solved: Path) -> None:
    names = paint_all(teaching, solved, 4)
    heads = []
    for _ in range(2):
        teaching.teach("star")
        assert teaching.taught is not None
        heads.append(torch.cat(list(teaching.taught.head.rows)))
    assert torch.equal(*heads)
    teaching.paint(names[0], None)
    teaching.teach("star")
    assert not torch.equal(heads[0], torch.cat(list(teaching.taught.head.rows)))
    teaching.undo(names[0])
    teaching.teach("star")
    assert torch.equal(heads[0], torch.cat(list(teaching.taught.head.rows)))


def test_an_old_class_can_be_corrected(teaching: tiss.Teaching, solved: Path, tmp_path: Path) -> None:
    name = next(iter(teaching.images))
    teaching.paint(name, truth(solved, name))
    result = teaching.teach("disc")
    assert [one.name for one in result.classes] == ["background", "disc", "square"]
    assert (teaching.predict(name).mask == 1)[truth(solved, name)].mean() > 0.5
    teaching.save(tmp_path / "taught")
    assert from_pretrained(tmp_path / "taught").classes == ["background", "disc", "square"]


def test_a_click_proposes_what_looks_alike_around_it(teaching: tiss.Teaching, solved: Path) -> None:
    name = next(iter(teaching.images))
    rows, columns = np.nonzero(truth(solved, name))
    x, y = int(np.median(columns)), int(np.median(rows))
    small, large = (teaching.propose(name, x, y, size) for size in (0.2, 0.8))
    assert small.shape == teaching.images[name].image.shape[:2] == small.shape
    assert small[y, x] and (small <= large).all() and small.sum() < large.sum() < small.size


def test_a_click_finds_its_place_where_the_map_is_finer_than_the_padding(
    teaching: tiss.Teaching, solved: Path
) -> None:
    name = next(iter(teaching.images))
    rows, columns = np.nonzero(truth(solved, name))
    x, y = int(np.median(columns)), int(np.median(rows))
    expected = teaching.propose(name, x, y)
    teaching.model.encoder.stride *= 2  # type: ignore[operator]
    assert np.array_equal(teaching.propose(name, x, y), expected)


def test_mistakes_are_one_line(
    teaching: tiss.Teaching, solved: Path, story: Path, tmp_path: Path, refused: Refused
) -> None:
    name = next(iter(teaching.images))
    for call, fault in (
        (lambda: teaching.teach("star"), "paint star on at least one image"),
        (lambda: teaching.teach(" "), "name the class"),
        (lambda: teaching.teach("star,moon"), "one class at a time"),
        (lambda: teaching.teach("a/b"), "no slash"),
        (lambda: teaching.paint(name, np.zeros((3, 3), bool)), r"\(3, 3\)"),
        (lambda: teaching.paint("nothing", None), "nothing"),
        (lambda: teaching.propose(name, 999, 0), "outside"),
        (lambda: teaching.save(tmp_path / "out"), "teach first"),
    ):
        with pytest.raises(tiss.TissError, match=fault):
            call()
    paint_all(teaching, solved, 2)
    teaching.teach("star")
    teaching.undo(name)
    with pytest.raises(tiss.TissError, match="teach first"):
        teaching.save(tmp_path / "out")
    teaching.teach("star")
    with pytest.raises(tiss.TissError, match="exists already"):
        teaching.save(tmp_path / "taught", solved / "stars")
    assert not (tmp_path / "taught").exists()
    assert "has no sums" in refused("app", story / "first", "--teach", "--device", "cpu")
