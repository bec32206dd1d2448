"""What a method keeps of the old classes, from images: the old model's own sure predictions are their labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from tiss.data.base import BACKGROUND, IGNORE, Batch, Dataset, Sample, Split
from tiss.engine.loop import one_pass
from tiss.engine.session import Session, freeze_copy
from tiss.errors import TissError
from tiss.models import SegmentationModel
from tiss.scenarios import Step
from tiss.user.compare import ImageSet

SURE = 0.7  # probability above which a prediction counts as a label


class Images(Dataset):
    """Images with the labels that they may have, in channels, as a data set."""

    name = "images"
    skips_broken = True

    def __init__(self, images: ImageSet) -> None:
        self.images, self.classes = images, images.space[1:]

    def ids(self, split: str) -> list[str]:
        return sorted(self.images.names)

    def read(self, split: str, id: str) -> Sample:
        image, label = self.images.read(self.images.names.index(id))
        return Sample(image, torch.zeros_like(image[0]) if label is None else label, id)


def know_from_images(session: Session, step: Step, more: Sequence[ImageSet]) -> None:
    """Gives the method what it keeps of the classes so far, from the images of `step` and `more`, before `step`.

    What is labelled in the step's images is left to the step itself.
    """
    old, model, classes = freeze_copy(session.model), session.model, session.model.classes
    channels = np.arange(256).astype(np.uint8)
    sets = [Images(images) for images in more]
    splits = [Split(one, "train", tuple(one.readable("train")), channels) for one in sets]
    splits = [step.train, *(split for split in splits if len(split))]
    steps = [first_step(step, classes, split) for split in splits]

    def batches() -> Iterator[Batch]:
        for number, one in enumerate(steps):
            with closing(session.train_loader(one)) as loader, one_pass(session, one, loader) as images:
                for batch in images():
                    label = label_surely(old, batch, known=0 if number == 0 else len(classes))
                    yield Batch(batch.image, label, batch.ids)

    ids = tuple(chain(*(split.ids for split in splits)))
    table = np.where(channels < len(classes), channels, IGNORE).astype(np.uint8)
    first = first_step(step, classes, Split(step.train.dataset, "train", ids, table))
    with session.looked_up(old):
        session.method.begin(first, model, session.config.seed)
        session.method.end(first, model, batches)
    counts = session.method.state()["counts"]
    unseen = [name for name, count in zip(classes[1:], counts[1:], strict=True) if not count]
    if unseen:
        raise TissError(
            f"on no image at hand the old model is sure of {', '.join(unseen)}, which {session.method.name} needs: "
            "give a folder that shows it, or use mib",
            setting="images",
        )


def first_step(step: Step, classes: Sequence[str], train: Split) -> Step:
    """A first step, of `train`, that shows all `classes`."""
    return Step(0, 1, len(classes) - 1, (), tuple(classes[1:]), (), train, step.test, step.steps)


@torch.no_grad()
def label_surely(old: SegmentationModel, batch: Batch, known: int) -> Tensor:
    """What the old model is sure of, else 255, where there is no label; of the labels, those below `known`."""
    sure, found = confidence(old, batch.image)
    found = torch.where(sure > SURE, found, IGNORE)
    given = torch.where(batch.label < known, batch.label, IGNORE)
    return torch.where(batch.label == BACKGROUND, found, given)


def confidence(old: SegmentationModel, images: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of the likeliest channel, and the channel, N × H × W each."""
    logits = old(images).pixels().float()
    if old.rule == "softmax":
        return logits.softmax(dim=1).max(dim=1)
    best, channel = logits[:, 1:].sigmoid().max(dim=1)
    return torch.maximum(best, 1 - best), torch.where(best > 0.5, channel + 1, BACKGROUND)
