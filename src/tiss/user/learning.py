"""`train` and `extend`: one step of learning on a user's own pictures, from their folder to a new model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tiss import __version__
from tiss.config import ModelConfig, RunConfig
from tiss.engine.learner import Learner, freeze_copy
from tiss.engine.progress import Reporter
from tiss.errors import TissError
from tiss.files import atomic_folder, existing, read_tensors, reserve, write_json, write_tensors, write_text
from tiss.models.folder import CARD
from tiss.models.model import SegmentationModel
from tiss.user.card import write_card
from tiss.user.choices import STATE, Wishes, choose_method, first_config, seen_size, step_config
from tiss.user.comparison import Comparison, Material, compare_models, describe
from tiss.user.lesson import LabelledFolder, Lesson, choose_classes, make_lesson, open_folder, split_names
from tiss.user.page import render, worst_pictures
from tiss.user.segformer import from_segformer
from tiss.user.segment import Segmenter
from tiss.user.source import Source, describe_parent, find_source

PAGE = 8 << 20  # bytes: report.html with its pictures, about


@dataclass(frozen=True)
class Outcome:
    """What a step came to."""

    out: Path
    facts: tuple[str, ...]
    result: Comparison

    def text(self) -> str:
        return "\n".join([*self.facts, "", *describe(self.result)])


def train(
    root: str,
    out: str,
    model: ModelConfig,
    wishes: Wishes,
    holdout: float,
    reporter: Reporter,
    freeze: bool = False,
) -> Outcome:
    """A first model from a labelled folder; with `freeze`, the encoder's pretrained weights stay as they are."""
    if freeze and model.pretrained is None:
        raise TissError("--freeze needs pretrained weights: an encoder that never learnt would stay so")
    place = check_out(out)
    dataset = open_folder(root, flag="FOLDER")
    lesson = make_lesson(dataset, ["background"], dataset.classes, 0, holdout, flag="FOLDER")
    config = first_config(dataset, len(lesson.step.train), wishes, model)
    learner = Learner(config=config, reporter=reporter)
    learner.begin(lesson.step)
    if freeze:
        assert learner.model is not None
        learner.model.encoder.requires_grad_(False)
    return _learn(learner, lesson, config, place, None, reporter)


def extend(
    model: str,
    root: str,
    classes: str | None,
    out: str,
    wishes: Wishes,
    holdout: float,
    allow_pickle: bool,
    reporter: Reporter,
) -> Outcome:
    """One more step: `model`, which stays as it is, and a labelled folder's new classes make a new model."""
    place = check_out(out)
    source = find_source(model)
    start = None if source.is_segformer else source.load()
    dataset = open_folder(root, split_names(classes) if classes else ())
    if start is None:
        start = from_segformer(
            source.folder, sample_pictures(dataset), allow_pickle=allow_pickle, device=wishes.device
        )
    if start.rule != "softmax":
        raise TissError(
            f"{source.name}: was trained with --method frozen, whose sigmoids extend cannot go on with"
        )
    new = choose_classes(classes, dataset.classes, start.classes, source.name)
    lesson = make_lesson(dataset, start.classes, new, len(start.groups), holdout)
    method = choose_method(wishes.method, start, source.folder)
    config = step_config(start, method, len(lesson.step.train), wishes)
    learner = Learner(config=config, model=start, reporter=reporter)
    learner.begin(lesson.step)
    assert learner.method is not None
    if (source.folder / STATE).is_file() and method in ("recall", str(start.record.get("method"))):
        learner.method.load_state(read_tensors(source.folder / STATE))
    return _learn(learner, lesson, config, place, source, reporter)


def _learn(
    learner: Learner, lesson: Lesson, config: RunConfig, out: Path, source: Source | None, reporter: Reporter
) -> Outcome:
    step = lesson.step
    before = freeze_copy(learner.model) if source is not None and learner.model is not None else None
    parent = source.hash() if source else None
    reporter.say(
        f"{len(step.train)} pictures to learn {', '.join(step.new_classes)} from, {len(step.test)} held out; "
        f"{config.method.name}, {config.train.epochs} epochs, batch {config.train.batch}, "
        f"{config.data.crop} pixels"
    )
    with reserve(existing(out), learner.room(step) + PAGE):
        seconds = learner.fit(step)
        model = learner.model
        assert model is not None
        assert learner.method is not None
        model.eval()
        size = config.data.crop or seen_size(model)
        now = Segmenter(model, size, device=learner.world.device)
        old = (
            now
            if before is None
            else Segmenter(before.to(learner.world.device), size, device=learner.world.device)
        )
        material = material_of(lesson, model.classes)
        result = compare_models(old, now, material, reporter)
    if before is None:
        result = _first_result(result)
    if source is not None and source.hash() != parent:
        raise TissError(
            f"{source.name}: its weights changed while it was being extended: nothing was written"
        )
    facts = _facts(step.new_classes, len(step.train), config, seconds)
    outcome = Outcome(out, facts, result)
    record = _record(before, lesson, config, source, out, result, seconds)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        model.record = {}
        model.to("cpu").save_pretrained(folder, record)
        state = learner.method.state()
        if state:
            write_tensors(folder / STATE, state)
        write_report(
            folder,
            outcome,
            [] if before is None else worst_pictures(result, material, old.on("cpu"), now.on("cpu")),
        )
        write_card(folder / CARD, model, record)
    return outcome


def write_report(folder: Path, outcome: Outcome, pictures: Sequence[Any]) -> None:
    """report.txt, report.json and report.html."""
    title = f"{outcome.out.name}: what was learnt"
    write_text(folder / "report.txt", outcome.text() + "\n")
    write_json(folder / "report.json", outcome.result.to_json())
    write_text(folder / "report.html", render(title, outcome.facts, outcome.result, pictures))


def _facts(new: Sequence[str], pictures: int, config: RunConfig, seconds: float) -> tuple[str, ...]:
    took = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
    return (
        f"learnt {', '.join(new)} from {pictures} pictures in {took} "
        f"({config.method.name}, {config.train.epochs} epochs, {config.model.encoder})",
    )


def _first_result(result: Comparison) -> Comparison:
    """A first model has nothing before it: its classes are all new, and nothing changed."""
    rows = [replace(one, kind="new", before=None, agreement=None) for one in result.classes]
    return replace(result, classes=rows, same=None, worst=[])


def _record(
    before: SegmentationModel | None,
    lesson: Lesson,
    config: RunConfig,
    source: Source | None,
    out: Path,
    result: Comparison,
    seconds: float,
) -> dict[str, Any]:
    step = lesson.step
    entry = {
        "step": step.index,
        "classes": list(step.new_classes),
        "method": config.method.name,
        "train_pictures": len(step.train),
        "held_out_pictures": len(step.test),
        "epochs": config.train.epochs,
        "seconds": round(seconds, 1),
        "new_iou": result.to_json()["new_iou"],
        "old_change": result.to_json()["old_change"],
        "pixels_as_before": result.same,
    }
    history = before.record.get("history") if before is not None else None
    record: dict[str, Any] = {
        "step": step.index,
        "tiss": __version__,
        "eval_size": config.data.crop,
        "recipe": config.train.recipe,
        "method": config.method.name,
        "seed": config.seed,
        "history": [*(history if isinstance(history, list) else []), entry],
    }
    if source is not None:
        record["parent"] = describe_parent(source, out)
    return record


def material_of(lesson: Lesson, classes: Sequence[str]) -> Material:
    """The held-out pictures with their labels in the model's channels."""
    held = lesson.held

    def read(index: int) -> tuple[Tensor, Tensor | None]:
        sample = held.read(index)
        return sample.image, sample.label

    return Material(tuple(held.ids), read, tuple(classes), lesson.labelled)


def sample_pictures(dataset: LabelledFolder, most: int = 64) -> list[Tensor]:
    """Some of the folder's pictures, spread evenly over it."""
    ids = dataset.ids("train")
    chosen = ids[:: max(1, len(ids) // most)][:most]
    return [dataset.read("train", id).image for id in chosen]


def check_out(out: str) -> Path:
    """Where the new model will lie: nothing may be there yet, and it must be possible to write there."""
    place = Path(out).expanduser()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise TissError(f"--out {out}: there is something already: choose another name")
    above = existing(place)
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise TissError(f"--out {out}: {above} cannot be written to: choose another place")
    return place
