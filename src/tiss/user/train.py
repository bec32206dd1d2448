"""`train` and `extend`: one step of the engine on a user's own images, from their folder to a new model."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tiss import __version__
from tiss.config import ModelConfig, RunConfig, to_mapping
from tiss.engine.predictor import Predictor
from tiss.engine.progress import Reporter, duration
from tiss.engine.run_folder import RunFolder, StepFolder, differences
from tiss.engine.session import Session, freeze_copy
from tiss.errors import TissError
from tiss.files import Lock, existing, reserve
from tiss.models.folder import CARD
from tiss.models.model import SegmentationModel
from tiss.user.card import write_card
from tiss.user.choices import Options, choose_method, first_config, step_config
from tiss.user.compare import Comparison, ImageSet, compare_models, describe, open_images
from tiss.user.folder_step import (
    FolderStep,
    LabelledFolder,
    choose_classes,
    make_folder_step,
    split_names,
)
from tiss.user.model_source import Source, check_out, describe_parent, find_source
from tiss.user.page import draw_worst, write_report
from tiss.user.segformer import from_segformer

PAGE = 8 << 20  # bytes: report.html with its images, about
MOST_AREAS = 200  # training images on which areas are compared, about
WORK = ".training"  # ending of the folder that holds the checkpoint until the model is there


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
    options: Options,
    holdout: float,
    reporter: Reporter,
    *,
    freeze: bool = False,
    resume: bool = False,
) -> Outcome:
    """A first model from a labelled folder; with `freeze`, the encoder's pretrained weights stay as they are."""
    if freeze and model.pretrained is None:
        raise TissError(
            "needs pretrained weights: an encoder without them would stay random", setting="freeze"
        )
    place = check_out(out)
    dataset = LabelledFolder(root)
    found = make_folder_step(dataset, ["background"], dataset.classes, 0, holdout)
    config = first_config(dataset, len(found.step.train), options, model)
    if freeze:
        config = replace(config, train=replace(config.train, encoder_lr=0.0))
    session = Session.start(described(config, found, root, holdout), found.step, reporter=reporter)
    return learn(session, found, place, None, resume)


def extend(
    model: str,
    root: str,
    classes: str | None,
    out: str,
    options: Options,
    holdout: float,
    reporter: Reporter,
    *,
    images: str | None = None,
    allow_pickle: bool = False,
    resume: bool = False,
) -> Outcome:
    """One more step: `model`, which stays as it is, and a labelled folder's new classes make a new model.

    `images` are more images on which the area of the old classes is compared.
    """
    place = check_out(out)
    source = find_source(model)
    start = None if source.is_segformer else source.load()
    dataset = LabelledFolder(root, split_names(classes) if classes else ())
    if start is None:
        start = from_segformer(
            source.folder, sample_images(dataset), allow_pickle=allow_pickle, device=options.device
        )
    if start.rule != "softmax":
        raise TissError(
            f"{source.name}: its method (frozen) uses sigmoids, which extend cannot add classes to"
        )
    new = choose_classes(classes, dataset.classes, start.classes, source.name)
    found = make_folder_step(dataset, start.classes, new, len(start.groups), holdout)
    folder = StepFolder(source.folder)
    method = choose_method(options.method, start, folder)
    config = step_config(start, method, len(found.step.train), options)
    config = replace(described(config, found, root, holdout), base=str(source.folder))
    usable = method in ("recall", str(start.record.get("method")))
    state = folder.method_state() if usable else None
    session = Session.start(config, found.step, model=start, state=state, reporter=reporter)
    return learn(session, found, place, source, resume, images)


def described(config: RunConfig, found: FolderStep, root: str, holdout: float) -> RunConfig:
    """`config` with what it is trained on, so that a step is only ever resumed with the same data."""
    data = replace(config.data, root=str(Path(root).expanduser()))
    return replace(config, data=data, task=[list(found.step.new_classes)], holdout=holdout)


def learn(
    session: Session,
    found: FolderStep,
    out: Path,
    source: Source | None,
    resume: bool,
    images: str | None = None,
) -> Outcome:
    """Trains the step, compares with the model before it, and writes the model folder `out` whole.

    Until then its checkpoints are in a folder beside `out`.
    """
    step, config, world = found.step, session.config, session.world
    before = freeze_copy(session.model) if source is not None else None
    parent = source.hash() if source else None
    session.reporter.say(
        f"{len(step.train)} images to train {', '.join(step.new_classes)}, {len(step.test)} held out; "
        f"{config.method.name}, {config.train.epochs} epochs, batch {config.train.batch}, "
        f"{config.data.crop} pixels"
    )
    work = RunFolder(out.with_name(out.name + WORK))
    if not resume and (work.path / "config.yaml").exists():
        with Lock(work.path / "lock"):
            if differences(to_mapping(work.config()), to_mapping(config)):  # of a command that was given up
                shutil.rmtree(work.path)
    out.parent.mkdir(parents=True, exist_ok=True)
    space = reserve(existing(out), session.size_after(step) + PAGE)
    with work.opened(config, world, resume) as journal, space:
        seconds = session.learn(step, journal)
        matrix = session.confusion(step.test)
        now = Predictor(session.model, config.data.crop, device=world.device)
        old = now if before is None else Predictor(before, config.data.crop, device=world.device)
        held = held_out(found, session.model.classes)
        more = None if before is None else more_images(found, images, session.model.classes)
        result = compare_models(old, now, held, session.reporter, more)
        if before is None:  # a first model has nothing before it: its classes are all new
            rows = [
                replace(one, kind="new", before=None, agreement=None, area_before=None)
                for one in result.classes
            ]
            result = replace(result, classes=rows, same=None, worst=[])
        if source is not None and source.hash() != parent:
            raise TissError(
                f"{source.name}: its weights changed while it was being extended: nothing was written"
            )
        outcome = Outcome(out, facts_of(step.new_classes, len(step.train), config, seconds), result)
        drawn = [] if before is None else draw_worst(result, held, old.on("cpu"), now.on("cpu"))
        model, record = (
            session.model.to("cpu"),
            record_of(before, found, config, source, out, result, seconds),
        )
        model.record = {}
        with StepFolder(out).writing(model, session.method.state(), matrix, record) as folder:
            write_report(folder, f"{out.name}: what was trained", outcome.facts, result, drawn)
            write_card(folder / CARD, model, record)
    shutil.rmtree(work.path)
    return outcome


def facts_of(new: Sequence[str], images: int, config: RunConfig, seconds: float) -> tuple[str, ...]:
    return (
        f"trained {', '.join(new)} on {images} images in {duration(seconds)} "
        f"({config.method.name}, {config.train.epochs} epochs, {config.model.encoder})",
    )


def record_of(
    before: SegmentationModel | None,
    found: FolderStep,
    config: RunConfig,
    source: Source | None,
    out: Path,
    result: Comparison,
    seconds: float,
) -> dict[str, Any]:
    """What the model folder says of how the model was made, step after step."""
    step, summary = found.step, result.to_json()
    entry = {
        "step": step.index,
        "classes": list(step.new_classes),
        "method": config.method.name,
        "train_pictures": len(step.train),
        "held_out_pictures": len(step.test),
        "epochs": config.train.epochs,
        "seconds": round(seconds, 1),
        "new_iou": summary["new_iou"],
        "old_change": summary["old_change"],
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


def held_out(found: FolderStep, classes: Sequence[str]) -> ImageSet:
    """The held-out images with their labels in the model's channels."""
    held = found.held

    def read(index: int) -> tuple[Tensor, Tensor | None]:
        sample = held.read(index)
        return sample.image, sample.label

    return ImageSet(tuple(held.ids), read, tuple(classes), found.labelled)


def more_images(found: FolderStep, images: str | None, classes: Sequence[str]) -> ImageSet:
    """Images of which only the area of each class is compared: those that were trained on, and `images`."""
    train = found.step.train
    ids = train.ids[:: max(1, len(train.ids) // MOST_AREAS)]
    given = open_images(images, classes, classes) if images else None

    def read(index: int) -> tuple[Tensor, Tensor | None]:
        if given is not None and index >= len(ids):
            return given.read(index - len(ids))
        return train.dataset.read("train", ids[index]).image, None

    return ImageSet((*ids, *(given.names if given else ())), read, tuple(classes))


def sample_images(dataset: LabelledFolder, most: int = 64) -> list[Tensor]:
    """Some of the folder's images, evenly spaced over it."""
    ids = dataset.ids("train")
    chosen = ids[:: max(1, len(ids) // most)][:most]
    return [dataset.read("train", id).image for id in chosen]
