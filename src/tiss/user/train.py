"""`train` and `extend`: one step of the engine on a user's own images, from their folder to a new model."""

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from tiss import __version__
from tiss.config import DataConfig, EvalConfig, ModelConfig, RunConfig, TrainConfig
from tiss.engine.device import computes_bf16
from tiss.engine.features import FeatureCache
from tiss.engine.predictor import Predictor, seen_size
from tiss.engine.progress import Reporter, TerminalReporter, duration
from tiss.engine.recipes import recipe_values
from tiss.engine.run_folder import RunFolder, StepFolder, differences, read_config
from tiss.engine.session import Session, freeze_copy, resolve_for
from tiss.errors import TissError
from tiss.files import Lock, existing, reserve
from tiss.files.atomic import sync
from tiss.methods.analytic import HEADS as PATCHWISE
from tiss.methods.base import METHODS, settings_from
from tiss.models import SegmentationModel, outline, resolve
from tiss.scenarios import Step
from tiss.user import changes, choose, compare
from tiss.user.choose import Way
from tiss.user.compare import ImageSet
from tiss.user.folder_step import LabelledFolder, choose_classes, make_folder_step, split_names, thin_classes
from tiss.user.foreign import from_foreign
from tiss.user.model_source import Source, check_out, describe_parent, find_source, write_card
from tiss.user.options import ExtendOptions, StepOptions, TrainOptions

# images seen in training, all epochs together; fewest and most epochs
FIRST, LATER = (6000, 20, 100), (1500, 5, 40)
GRAIN, LARGEST = 32, 512  # of the training crop
PAGE = 8 << 20  # bytes: report.html with its images, about
MOST_AREAS = 200  # training images on which areas are compared, about
MOST_SAMPLES = 64  # images that set the background of a model that has none
WORK = ".training"  # ending of the folder that holds the checkpoint until the model is there


def train(options: TrainOptions, reporter: Reporter) -> str:
    """A first model from a labelled folder; returns what came of it, for a terminal."""
    if done := finished(options):
        return done
    gpu = options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available())
    usual = "vit_small_patch16_384" if gpu else "vit_tiny_patch16_384"  # what the machine trains in minutes
    encoder, pretrained = options.encoder or usual, options.pretrained
    if pretrained == "auto":
        pretrained = "default" if outline(encoder).hub is not None else None
    if options.freeze and pretrained is None:
        raise TissError("needs pretrained weights: others would stay random", setting="freeze")
    out = check_out(options.out)
    dataset = LabelledFolder(options.folder)
    step = make_folder_step(dataset, ["background"], dataset.classes, 0, options.holdout)
    decoder = options.decoder
    if decoder is None and options.freeze and options.method == "auto" and outline(encoder).any_size:
        decoder = "levels"  # nothing else adapts the features
    model = ModelConfig(encoder, decoder, pretrained, allow_pickle=options.allow_pickle)
    automatic = "recall" if pretrained is None else "analytic"
    if resolve(model).head not in PATCHWISE:
        automatic = "mib"
    method = automatic if options.method == "auto" else options.method
    recipe = "demo" if pretrained is None else "tuned"
    config = make_config(options, step, model, recipe, method, options.size or choose_size(dataset))
    if options.freeze:
        config = replace(config, train=replace(config.train, encoder_lr=0.0))
    session = Session.start(resolve_for(config, dataset), step, reporter=reporter)
    return learn([Way(session)], step, dataset, out, None, options)


def extend(options: ExtendOptions, reporter: Reporter | None = None) -> str:
    """One more step: a model, which stays as it is, and a labelled folder's new classes make a new model.

    Returns what came of it, for a terminal.
    """
    reporter = reporter or TerminalReporter()
    if done := finished(options):
        return done
    out = check_out(options.out)
    source = find_source(options.model)
    dataset = LabelledFolder(options.data, split_names(options.classes) if options.classes else ())
    start = load_start(source, dataset, options)
    found = choose.candidates(options.method, start, StepFolder(source.folder))
    again = [one for one in found if METHODS.get(one.method).solved]
    names = choose_classes(options.classes, dataset.classes, start.classes, source.name, bool(again))
    if set(names) & set(start.classes):
        found = again
    step = make_folder_step(dataset, start.classes, names, len(start.groups), options.holdout)
    parts = start.architecture
    model = ModelConfig(encoder=parts.encoder, decoder=parts.decoder, image_size=parts.image_size)
    usual = "tuned" if outline(parts.encoder).hub is not None else "demo"
    recipe, size = str(start.record.get("recipe") or usual), options.size or seen_size(start)
    ways: list[Way] = []
    for one in found:
        config = make_config(options, step, model, recipe, one.method, size)
        config = resolve_for(replace(config, base=str(source.folder)), dataset)
        world = ways[0].session.world if ways else None
        session = Session.start(config, step, model=start, state=one.state, world=world, reporter=reporter)
        ways.append(Way(session, one.from_images))
    return learn(ways, step, dataset, out, source, options)


def load_start(source: Source, dataset: LabelledFolder, options: ExtendOptions) -> SegmentationModel:
    """The model to extend; one of another library may need images for its background."""
    if source.library is None:
        if options.names is not None:
            raise TissError(f"{source.name} names its classes itself: leave it out", setting="names")
        return source.load()
    ids = dataset.ids("train")
    some = ids[:: max(1, len(ids) // MOST_SAMPLES)][:MOST_SAMPLES]
    images = [dataset.read("train", id).image.contiguous() for id in some]
    return from_foreign(source.library, source.folder, images, options)


def finished(options: StepOptions) -> str | None:
    """What to say where the command was stopped after its model was in place; what was left of it goes."""
    out = Path(options.out).expanduser()
    work = out.with_name(out.name + WORK)
    # of several processes another one may have removed `work` already
    if not (options.resume and StepFolder(out).is_complete):
        return None
    shutil.rmtree(work, ignore_errors=True)
    return f"{options.out}: is finished"


def learn(
    ways: Sequence[Way],
    step: Step,
    dataset: LabelledFolder,
    out: Path,
    source: Source | None,
    options: TrainOptions | ExtendOptions,
) -> str:
    """Trains the step, compares with the model before it, writes the model folder `out` whole, and describes it.

    Until then its checkpoints are in a folder beside `out`. Of several processes the first one writes and describes.
    """
    first, classes, taught = ways[0].session, step.classes, ", ".join(names_of(step))
    config, world, reporter = first.config, first.world, first.reporter
    before = freeze_copy(first.model) if source else None
    parent = source.hash() if source else None
    held = ImageSet.of(step.test, classes, dataset.table(classes)[1])
    every = max(1, len(step.train) // MOST_AREAS)
    more = [ImageSet.of(replace(step.train, ids=step.train.ids[::every]), classes)] if source else []
    if isinstance(options, ExtendOptions) and options.images:
        more.append(compare.open_images(options.images, classes, classes))
    reporter.say(
        f"{len(step.train)} images to train {taught}, {len(step.test)} held out; {config.data.crop} pixels"
    )
    if thin := thin_classes(step, config.data.crop or 0, first.model.decoder.stride):
        patch = f"{first.model.decoder.stride} of {config.data.crop} pixels"
        reporter.say(
            f"narrower than half a patch ({patch}): {', '.join(thin)}; a larger --size finds more of them"
        )
    work = RunFolder(out.with_name(out.name + WORK))
    if world.is_main and not options.resume and (work.path / "config.yaml").exists():
        with Lock(work.path / "lock"):
            if differences(read_config(work.path), config):  # of a command that was given up
                shutil.rmtree(work.path)
    world.wait()  # every process finds the folder as the first one leaves it
    out.parent.mkdir(parents=True, exist_ok=True)
    size = sum(way.session.size_after(step) for way in ways) + PAGE
    space = reserve(existing(out), size) if world.is_main else nullcontext()
    with work.opened(config, world, options.resume) as journal, space, ExitStack() as stack:
        kept = FeatureCache.kept_in(work.path / "features", computes_bf16(config.train), world)
        features = stack.enter_context(kept)
        minutes = options.minutes if isinstance(options, ExtendOptions) else 0.0
        freeze = (
            isinstance(options, TrainOptions) and not options.freeze and config.model.pretrained is not None
        )
        setting = choose.Setting(step, before, held, more, features, work.path)
        chosen = choose.learn(ways, setting, journal, minutes, freeze)
        if not world.is_main:
            return ""
        config, model = chosen.session.config, chosen.session.model
        now = Predictor(model, config.data.crop, device=world.device)
        old = Predictor(before, config.data.crop, device=world.device) if before else None
        result = compare.compare_models(old, now, held, reporter, more, features)
        result.tried = chosen.tried
        if source is not None and source.hash() != parent:
            raise TissError(f"{source.name}: its weights have changed meanwhile: nothing was written")
        model.to("cpu")
        drawn = compare.draw_worst(result, held, old.on("cpu"), now.on("cpu"), features) if old else []
        effort = choose.effort(chosen.session, step)
        fact = (
            f"trained {taught} on {len(step.train)} images in {duration(chosen.seconds)} "
            f"({effort}, {config.model.encoder})"
        )
        record = record_of(before, step, chosen, result)
        if source is not None:
            record["parent"] = describe_parent(source, out)
        model.record = {}
        made = work.path / "model"  # moved when it is whole, so that nothing else is ever left beside `out`
        state = chosen.session.method.state()
        with StepFolder(made).writing(model, state, chosen.matrix, record) as folder:
            compare.write_report(folder, f"{out.name}: what was trained", fact, result, drawn)
            write_card(folder, model, record)
        os.replace(made, out)
        sync(out.parent)
    shutil.rmtree(work.path)
    return "\n".join([fact, "", *changes.describe(result)])


def record_of(
    before: SegmentationModel | None, step: Step, chosen: choose.Chosen, result: changes.Comparison
) -> dict[str, Any]:
    """What the model folder says of how the model was made, step after step."""
    summary, config = result.to_json(), chosen.session.config
    entry = {
        "step": step.index,
        "classes": names_of(step),
        "method": config.method.name,
        "train_images": len(step.train),
        "held_out_images": len(step.test),
        "epochs": choose.epochs_of(chosen.session, step),
        "seconds": round(chosen.seconds, 1),
        **{key: summary[key] for key in ("new_iou", "old_change", "pixels_as_before")},
        "tried": [asdict(trial) for trial in result.tried],
    }
    history = before.record.get("history") if before else None
    return {
        "step": step.index,
        "tiss": __version__,
        "eval_size": config.data.crop,
        "recipe": config.train.recipe,
        "method": config.method.name,
        "seed": config.seed,
        "history": [*(history if isinstance(history, list) else []), entry],
    }


def names_of(step: Step) -> list[str]:
    """The classes that the step's images are labelled with: new ones, and old ones that it shows again."""
    return [step.classes[channel] for channel in step.train.labelled]


def choose_epochs(images: int, total: int, least: int, most: int) -> int:
    """As many epochs as show training about `total` images.

    >>> [choose_epochs(n, 1500, 5, 40) for n in (10, 50, 1000)]
    [40, 30, 5]
    """
    return min(most, max(least, round(total / images)))


def choose_batch(images: int) -> int:
    """Small batches for few images, so that there are enough updates.

    >>> [choose_batch(n) for n in (3, 50, 1000)]
    [2, 4, 8]
    """
    return next(batch for batch, least in ((8, 200), (4, 8), (2, 2), (1, 0)) if images >= least)


def choose_size(dataset: LabelledFolder) -> int:
    """The training crop: the median of the images' shorter sides, a multiple of 32, at most 512."""
    sides = sorted(min(entry.width, entry.height) for entry in dataset.entries("train").values())
    return min(LARGEST, max(GRAIN, sides[len(sides) // 2] // GRAIN * GRAIN))


def make_config(
    options: StepOptions, step: Step, model: ModelConfig, recipe: str, method: str, size: int
) -> RunConfig:
    """The configuration of a step; what it is trained on is part of it, so that only the same step is resumed."""
    images = len(step.train)
    epochs = options.epochs or choose_epochs(images, *(LATER if step.index else FIRST))
    batch = min(options.batch or choose_batch(images), images)
    updates = epochs * max(1, images // batch)
    values = recipe_values(recipe, "folder", outline(str(model.encoder)), METHODS.get(method))
    return RunConfig(
        data=DataConfig(name="folder", root=str(step.train.dataset.root_path()), crop=size),
        task=[names_of(step)],
        holdout=options.holdout,
        method=settings_from(method),
        model=model,
        train=TrainConfig(
            recipe=recipe,  # type: ignore[arg-type]
            epochs=epochs,
            step_epochs=epochs,
            batch=batch,
            lr=options.lr,
            step_lr=options.lr,
            # a warm-up meant for long runs would be all of a short one
            warmup=min(int(values.get("warmup") or 0), updates // 10),
            device=options.device,
            keep_features=True,
            workers=0,
            save_every=max(1, updates // 10),
        ),
        eval=EvalConfig(mode="slide", size=size),
        seed=options.seed,
    )
