"""Which methods could learn a step, how long they take on this machine, and which one does it best."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from tiss.engine.checkpoint import Journal
from tiss.engine.features import FeatureCache
from tiss.engine.predictor import Predictor
from tiss.engine.progress import duration
from tiss.engine.recipes import Plan
from tiss.engine.run_folder import StepFolder
from tiss.engine.session import VIEWS, Session
from tiss.errors import SpaceError, TissError
from tiss.evaluation.evaluate import window_slices
from tiss.evaluation.scores import harmonic_mean, mean
from tiss.files import make_folder, read_json, write_json
from tiss.methods.analytic import HEADS as PATCHWISE
from tiss.methods.base import METHODS
from tiss.models import SegmentationModel
from tiss.scenarios import Split, Step
from tiss.user import compare
from tiss.user.changes import Comparison, Trial
from tiss.user.compare import ImageSet
from tiss.user.from_images import know_from_images

LONG = 600.0  # seconds after which a command says beforehand what would be shorter
SEEN = 0.1  # percent of the held-out images that a class must have covered for its agreement to count
SMALL = 224  # the size to suggest where a command would take long
# in forward passes of the encoder: an update (forward and backward), the teacher, and a head with its loss
UPDATE, TEACHER, HEAD = 3.0, 1.0, 0.1


@dataclass(frozen=True)
class Candidate:
    """A method that could learn the step, and where what it keeps of the old classes comes from."""

    method: str
    state: Mapping[str, Tensor]
    from_images: bool = False  # else it is in the model's folder, or none is needed


@dataclass
class Way:
    """A candidate's session."""

    session: Session
    from_images: bool = False

    @property
    def name(self) -> str:
        return self.session.method.name


@dataclass
class Chosen:
    """The session that has learned the step, and what was tried; the first was taken."""

    session: Session
    seconds: float
    matrix: Tensor
    tried: list[Trial] = field(default_factory=list)


@dataclass(frozen=True)
class Setting:
    """What all ways have in common."""

    step: Step
    before: SegmentationModel | None
    held: ImageSet
    more: Sequence[ImageSet]  # on which areas are compared; those after the first are not the step's own
    features: FeatureCache
    work: Path


def candidates(asked: str, model: SegmentationModel, folder: StepFolder) -> list[Candidate]:
    """The method that was asked for, or with `auto` all that could learn the step, the fastest first."""
    state, made_by = folder.method_state(), str(model.record.get("method"))
    count, width, head = len(model.classes), model.decoder.channels, model.architecture.head
    gaussians = {"means": (count, width), "roots": (count, width, width), "counts": (count,)}
    recalled = {name: tuple(tensor.shape) for name, tensor in state.items()} == gaussians
    solved = made_by if state and made_by in METHODS and METHODS.get(made_by).solved else "analytic"
    held = {"recall"} if recalled else {solved} if state and solved == made_by else set()
    trained = ["recall"] * (head in ("linear", "cosine")) + ["mib"] if model.rule == "softmax" else []
    names = [asked] if asked != "auto" else [solved] * (head in PATCHWISE) + trained
    if asked != "auto" and METHODS.get(asked).joint:
        raise TissError(f"{asked}: needs all the old images: use mib or recall", setting="method")
    if not names or not (model.rule == "softmax" or METHODS.get(names[0]).solved):
        fault = f"cannot add classes to a model of {made_by}, which uses sigmoids"
        remedy = ": use analytic" if head in PATCHWISE else f", with a head {head!r}"
        raise TissError(f"{asked}: {fault}{remedy}", setting="method")
    found = []
    for name in names:
        needy = name == "recall" or METHODS.get(name).solved
        kept = state if name in held or (name == made_by and not needy) else {}
        found.append(Candidate(name, kept, from_images=needy and name not in held))
    return found


def learn(
    ways: Sequence[Way], setting: Setting, journal: Journal, minutes: float, freeze: bool = False
) -> Chosen:
    """Learns the step in every way that fits into `minutes`, and takes the best on the held-out images.

    What is tried, and what is done, is kept in the work folder: a command that is resumed tries the same. `freeze`
    says that freezing the encoder would make it shorter.
    """
    step, world, say = setting.step, ways[0].session.world, ways[0].session.reporter.say
    seconds, tried = make_plan(ways, setting, minutes)
    fits = [way for way in ways if way.name in tried]
    total = sum(seconds[way.name] for way in fits)
    for way in fits:
        say(f"{effort(way.session, step)}: about {duration(seconds[way.name])} on this machine")
    if total > LONG:
        say(shorter(total, fits[-1].session, step, freeze))
    for way in ways:
        way.session.features = setting.features
    if len(ways) == 1:
        return attempt(ways[0], setting, journal)

    done: list[tuple[Trial, Way]] = []
    left: list[Trial] = []
    for way in ways:
        if done and way not in fits:
            left.append(skip(way.name, seconds[way.name], total))
            say(str(left[-1]))
            continue
        folder = setting.work / f"try-{way.name}"
        if not StepFolder(folder).is_complete:
            try:
                chosen, model = attempt_apart(way, setting, folder)
            except SpaceError:
                raise
            except (
                TissError
            ) as error:  # of all processes: it cannot learn of the old classes from these images
                if way is ways[-1] and not done:
                    raise
                left.append(Trial(way.name, note=error.message))
                say(str(left[-1]))
                continue
            if world.is_main:
                store(way, setting, folder, chosen, model)
        world.wait()
        done.append((Trial(**read_json(folder / "trial.json")), way))
        say(str(done[-1][0]))
    best, way = max(done, key=lambda pair: pair[0].score or 0.0)
    step_folder, session = StepFolder(setting.work / f"try-{way.name}"), way.session
    session.model = step_folder.model()
    session.method.load_state(step_folder.method_state())
    others = [trial for trial, _ in done if trial is not best]
    return Chosen(session, best.seconds, step_folder.confusion(), [best, *others, *left])


def attempt(way: Way, setting: Setting, journal: Journal) -> Chosen:
    """Learns the step in one way, and tests the model."""
    session, start = way.session, time.monotonic()
    if way.from_images:
        know_from_images(session, setting.step, setting.more[1:])
    before = time.monotonic() - start
    seconds = before + session.learn(setting.step, journal)
    return Chosen(session, seconds, session.confusion(setting.step.test))


def attempt_apart(way: Way, setting: Setting, folder: Path) -> tuple[Chosen, SegmentationModel]:
    """An attempt with checkpoints in `folder`, and its model; the session keeps the model that it starts from."""
    session, start = way.session, way.session.model
    session.model = copy.deepcopy(start)
    make_folder(folder)
    try:
        return attempt(way, setting, Journal(session.world, folder)), session.model
    finally:
        session.model = start


def store(way: Way, setting: Setting, folder: Path, chosen: Chosen, model: SegmentationModel) -> None:
    """Writes what one of several ways has learned, and how good it is."""
    session, size = way.session, way.session.config.data.crop
    device = session.world.device
    now = Predictor(model, size, device=device)
    old = Predictor(setting.before, size, device=device) if setting.before else None
    result = compare.compare_models(old, now, setting.held, session.reporter, (), setting.features)
    trial = judge(way.name, result, chosen.seconds)
    with StepFolder(folder).writing(model.to("cpu"), session.method.state(), chosen.matrix, {}) as made:
        write_json(made / "trial.json", asdict(trial))


def judge(name: str, result: Comparison, seconds: float) -> Trial:
    """The score is the harmonic mean of what was learned and what was kept: neither makes up for the other.

    Learned is the mean IoU of the new classes; kept is the mean over the old classes, the background among them, of the
    IoU or, for those without labels, of the agreement with the old model outside the new labels, if there is any.
    """
    kept = [one.after for one in result.old_classes if one.before is not None]
    kept += [
        one.agreement for one in result.old_classes if one.before is None and (one.area_before or 0) > SEEN
    ]
    new, old = result.new_iou, mean(kept)
    score = old if new is None else new if old is None else harmonic_mean(new, old)
    return Trial(name, new, old, result.old_change, score, round(seconds, 1))


def make_plan(ways: Sequence[Way], setting: Setting, minutes: float) -> tuple[dict[str, float], list[str]]:
    """Seconds that each way would take, and which ones are tried: the first, and others that fit into `minutes`."""
    world, names = ways[0].session.world, [way.name for way in ways]
    path = setting.work / f"plan-{'-'.join(names)}.json"  # a resumed command may ask for other methods
    if world.is_main and not path.exists():
        also, seconds = sum(len(images.names) for images in setting.more[1:]), {}
        session, bf16, tried = ways[0].session, setting.features.bf16, list[str]()
        looked_up, trained = seconds_per_crop(session, bf16), seconds_per_crop(session)
        for way in ways:
            once, other = passes(way.session, setting.step, also)
            seconds[way.name] = looked_up * once + trained * other
            also = 0  # their features are there then
            if not tried or sum(map(seconds.__getitem__, [*tried, way.name])) <= 60 * minutes:
                tried.append(way.name)
        write_json(path, {"seconds": seconds, "tried": tried})
    world.wait()
    plan = read_json(path)
    return plan["seconds"], plan["tried"]


def seconds_per_crop(session: Session, bf16: bool = False) -> float:
    """How long a forward pass of one training crop takes on this machine as it is now; `bf16` on a CPU."""
    body, size = session.model.body.eval(), session.config.data.crop
    assert size is not None
    image = torch.zeros(1, 3, size, size, dtype=torch.uint8, device=session.world.device)
    taken = math.inf
    half = torch.autocast("cpu", torch.bfloat16, enabled=bf16)
    with torch.no_grad(), session.world.autocast(), half:
        for _ in range(4):  # the first one is slower, and another program may be in the way
            start = time.monotonic()
            body(image)[0].sum().item()
            taken = min(taken, time.monotonic() - start)
    return taken


def passes(session: Session, step: Step, also: int) -> tuple[float, float]:
    """What a step takes in forward passes of a crop: those whose features are kept, and all other work.

    `also` are more images to compare.
    """
    plan, images, method = Plan.of(session.config, step.index), len(step.train), session.method
    later = step.index > 0
    looks = windows_per_image(step.train, plan.crop) * (images + len(step.test) + also)
    views = 0 if session.solves(step) else plan.epochs * images
    fixed = session.config.train.encoder_lr == 0 and not any(True for _ in session.model.decoder.parameters())
    if fixed or (later and method.frozen == "everything"):
        return looks + min(VIEWS * images, views), HEAD * views
    return looks, (UPDATE + TEACHER * (later and method.uses_teacher)) * views


def windows_per_image(split: Split, size: int) -> float:
    """How many windows of `size` a test cuts an image into, on average."""
    sizes = split.dataset.sizes(split.split)
    counts = [len(window_slices(round(max(sizes[id]) / min(sizes[id]) * size), size)) for id in split.ids]
    return sum(counts) / len(counts)


def epochs_of(session: Session, step: Step) -> int:
    return 0 if session.solves(step) else Plan.of(session.config, step.index).epochs


def effort(session: Session, step: Step) -> str:
    epochs, batch = epochs_of(session, step), session.config.train.batch
    how = f"{epochs} epochs, batch {batch}" if epochs else "solved in one pass"
    return f"{session.method.name}, {how}"


def shorter(seconds: float, session: Session, step: Step, freeze: bool) -> str:
    """A line on what would make a long command shorter."""
    size, epochs = session.config.data.crop or 0, epochs_of(session, step)
    flags = [f"--size {SMALL}"] * (size > SMALL) + ["--freeze"] * freeze
    flags += [f"--epochs {max(1, int(epochs * LONG / seconds))}"] * (epochs > 1)
    text = f"about {duration(seconds)} on this machine in all"
    return f"{text}: {' or '.join(flags)} would be shorter" if flags else text


def skip(name: str, seconds: float, total: float) -> Trial:
    enough = int((total + seconds) // 60) + 1
    return Trial(name, note=f"skipped, about {duration(seconds)}: --minutes {enough} would try it")
