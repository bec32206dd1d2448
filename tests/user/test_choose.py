"""`extend --method auto`: what is tried, what is taken and why, also after a stop; and sums from images."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from tests.engine.processes import Launched
from tests.user.story import Capture, Patch, Refused, second_step, tiss
from tests.user.test_train import GoesDown, contents, report
from tiss.engine.session import Session
from tiss.models import SegmentationModel
from tiss.user import choose, train
from tiss.user.changes import ClassChange, Comparison


def automatic(story: Path, out: Path, *more: object) -> list[str]:
    words = second_step(story, out)
    place = words.index("--method")
    return [*words[:place], *words[place + 2 :], *map(str, more)]


def tried(folder: Path) -> dict[str, dict]:
    history = json.loads((folder / "config.json").read_text())["record"]["history"]
    return {one["method"]: one for one in history[-1]["tried"]}


def compared(new: float, *old: tuple[float | None, float | None]) -> Comparison:
    rows = [
        ClassChange(str(number), "old", iou, iou, same, 5.0, 5.0) for number, (iou, same) in enumerate(old)
    ]
    return Comparison([*rows, ClassChange("new", "new", after=new)], 1, 90.0, [], False)


def test_what_was_lost_counts_as_much_as_what_was_gained():
    kept, lost = compared(50, (None, 90.0), (None, 90.0)), compared(70, (None, 90.0), (None, 0.0))
    nothing, labelled = compared(0, (None, 100.0)), compared(50, (40.0, 99.0), (None, 90.0))
    scores = [choose.judge("mib", one, 1.0).score for one in (kept, lost, nothing, labelled)]
    assert scores == pytest.approx([2 * 50 * 90 / 140, 2 * 70 * 45 / 115, 0, 2 * 50 * 65 / 115])


def test_a_small_encoder_from_scratch_is_trained(story: Path, tmp_path: Path, capsys: Capture):
    """No frozen encoder can win there, so the holdout must say so."""
    tiss(*automatic(story, tmp_path / "out", "--images", story / "warehouse"))
    found, model = tried(tmp_path / "out"), SegmentationModel.from_pretrained(tmp_path / "out")
    assert set(found) == {"analytic", "recall", "mib"}
    assert all(one["seconds"] > 0 for one in found.values())
    assert found["analytic"]["score"] < max(one["score"] for one in found.values())
    entry = model.record["history"][1]
    assert entry["method"] == next(iter(found)) != "analytic"
    lines = capsys.readouterr().err
    assert all(f"{name}: new classes" in lines for name in found)
    assert "Methods" in (tmp_path / "out" / "report.html").read_text()


def test_methods_that_take_too_long_are_skipped(
    story: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture
):
    monkeypatch.setattr(choose, "seconds_per_crop", lambda session, bf16=False: 1.0)
    tiss(*automatic(story, tmp_path / "out", "--minutes", "0.1", "--images", story / "warehouse"))
    found = tried(tmp_path / "out")
    assert [name for name, one in found.items() if one["note"]] == ["recall", "mib"]
    assert "--minutes" in found["mib"]["note"]
    assert SegmentationModel.from_pretrained(tmp_path / "out").record["method"] == "analytic"
    assert "mib: skipped, about" in capsys.readouterr().err


def test_a_long_command_says_what_would_be_shorter(
    story: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture
):
    monkeypatch.setattr(choose, "seconds_per_crop", lambda session, bf16=False: 100.0)
    tiss(*second_step(story, tmp_path / "out"))
    assert "or --epochs" not in (text := capsys.readouterr().err) and "--epochs" in text


@pytest.mark.parametrize("method", ["recall", "mib"])
def test_stopped_while_trying_and_resumed_to_the_same_bytes(
    method: str, story: Path, tmp_path: Path, monkeypatch: Patch
):
    words = automatic(story, tmp_path / "straight")
    tiss(*words)
    learned, plain, out = [], Session.learn, tmp_path / "out"

    def learn(session: Session, *rest: object) -> float:
        learned.append(session.method.name)
        seconds = plain(session, *rest)  # type: ignore[arg-type]
        if stop and session.method.name == method:
            raise GoesDown
        return seconds

    stop = True
    monkeypatch.setattr(Session, "learn", learn)
    with pytest.raises(GoesDown):
        tiss(*words[: words.index("--out") + 1], out, *words[words.index("--out") + 2 :])
    assert not out.exists()
    stop = False
    learned.clear()
    # another machine's speed changes nothing: what is tried was decided
    monkeypatch.setattr(choose, "seconds_per_crop", Mock(side_effect=AssertionError))
    tiss(*words[: words.index("--out") + 1], out, *words[words.index("--out") + 2 :], "--resume")
    assert learned == ["recall", "mib"][["recall", "mib"].index(method) :]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]
    one, two = (contents(folder) for folder in (tmp_path / "straight", out))
    assert one["model.safetensors"] == two["model.safetensors"]
    assert one["confusion.safetensors"] == two["confusion.safetensors"]


def test_stopped_with_one_method_and_resumed_with_all(story: Path, tmp_path: Path, monkeypatch: Patch):
    """The first one, and so the configuration, is the same; features do not stay on the disk meanwhile."""
    words = automatic(story, tmp_path / "out", "--minutes", 0, "--images", story / "warehouse")
    with monkeypatch.context() as stopped:
        stopped.setattr(Session, "confusion", Mock(side_effect=GoesDown))
        with pytest.raises(GoesDown):
            tiss(*words, "--method", "analytic")
    left = {path.name for path in (tmp_path / "out.training").iterdir()}
    assert "config.yaml" in left and "features" not in left
    tiss(*words, "--resume")
    assert set(tried(tmp_path / "out")) == {"analytic", "recall", "mib"}


def test_sums_come_from_images_where_the_model_has_none(story: Path, tmp_path: Path):
    """`first` keeps what `recall` needs. The warehouse shows all that it knows; the head is solved, the body stays."""
    words = [
        "extend",
        story / "first",
        "--data",
        story / "tonight",
        "--classes",
        "star",
        "--method",
        "analytic",
    ]
    tiss(*words, "--images", story / "warehouse" / "images", "--out", tmp_path / "out")
    before, after = (SegmentationModel.from_pretrained(path) for path in (story / "first", tmp_path / "out"))
    assert after.classes == [*before.classes, "star"] and after.groups == [*before.groups, [3]]
    assert after.architecture.head == "random"
    bodies = before.body.state_dict(), after.body.state_dict()
    assert all(torch.equal(bodies[0][name], bodies[1][name]) for name in bodies[0])
    rows = report(tmp_path / "out")
    assert all(rows[name]["area_after"] > 0 for name in ("background", "disc", "square"))
    # the next step has sums to add to
    more = ["--data", story / "tonight", "--classes", "star", "--out", tmp_path / "again"]
    tiss("extend", tmp_path / "out", *more)
    assert list(tried(tmp_path / "again")) == []


def test_images_that_do_not_show_an_old_class_are_refused(story: Path, tmp_path: Path, refused: Refused):
    words = automatic(story, tmp_path / "out")
    assert "disc" in refused(*words, "--method", "analytic", last=True)
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.training").exists()
    tiss(*words, "--minutes", 0)  # the next one can do without
    found = tried(tmp_path / "out")
    assert list(found) == ["recall", "analytic", "mib"]
    assert "disc" in found["analytic"]["note"] and "--minutes" in found["mib"]["note"]


def test_two_processes_try_the_same_and_agree(story: Path, tmp_path: Path):
    """What one method lacks, it lacks in both of them, and the others are tried; the first process writes."""
    words = automatic(story, tmp_path / "out", "--epochs", 4)
    launched = Launched(words[1:], tmp_path / "log", module=("tiss", "extend"))
    assert launched.wait() == 0, launched.output()
    found, history = tried(tmp_path / "out"), report(tmp_path / "out")
    assert set(found) == {"analytic", "recall", "mib"} and "disc" in found["analytic"]["note"]
    scores = {name: one["score"] for name, one in found.items() if one["score"] is not None}
    assert set(scores) == {"recall", "mib"} and next(iter(found)) == max(scores, key=scores.__getitem__)
    assert launched.output().count("mib: new classes") == 1 and history["star"]["after"] is not None
    assert {path.name for path in tmp_path.iterdir()} == {"out", "log"}


def test_a_model_of_sigmoids_can_only_be_solved(story: Path, tmp_path: Path, refused: Refused):
    model = SegmentationModel.from_pretrained(story / "first")
    with torch.no_grad():  # the same labels, if surely so
        model.head.rows[0] -= model.head.rows[0][:1].clone()
        model.head.biases[0] -= model.head.biases[0][:1].clone()
    model.rule, model.record = "sigmoid", {}
    model.save_pretrained(tmp_path / "model")
    words = ["extend", tmp_path / "model", "--data", story / "tonight", "--classes", "star", "--size", 32]
    words += ["--images", story / "warehouse", "--out", tmp_path / "out"]
    assert "sigmoids: use analytic" in refused(*words, "--method", "mib")
    tiss(*words)
    made = SegmentationModel.from_pretrained(tmp_path / "out")
    assert (made.record["method"], made.rule, made.classes[3]) == ("analytic", "softmax", "star")


def test_no_image_goes_through_a_frozen_encoder_twice(story: Path, tmp_path: Path, monkeypatch: Patch):
    """Neither in the pass, nor in the test, nor in the comparison."""
    seen: list[bytes] = []
    plain = train.FeatureCache.one

    def one(self: object, compute: object, name: str, image: torch.Tensor) -> torch.Tensor:
        def counted(pixels: torch.Tensor) -> object:
            seen.append(pixels.numpy().tobytes())
            return compute(pixels)  # type: ignore[operator]

        return plain(self, counted, name, image)  # type: ignore[arg-type]

    monkeypatch.setattr(train.FeatureCache, "one", one)
    tiss(*second_step(story, tmp_path / "out"))
    assert len(seen) == len(set(seen)) > 8
