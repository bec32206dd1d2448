"""What a data set is, and the one batch contract.

A data set numbers its labels itself: 0 is the background (or "other"), 1..K are its classes in its own order,
255 is ignored. Which of them a model learns when, and in which channel, is the scenario's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from tiss.errors import TissError
from tiss.registry import Registry

IGNORE = 255
BACKGROUND = 0
SPLITS = ("train", "test")


@dataclass(frozen=True)
class Sample:
    """One image and its mask, as read from disk: original size, the data set's own label numbers."""

    image: Tensor  # uint8, 3 × H × W, RGB
    label: Tensor  # uint8, H × W
    id: str


@dataclass(frozen=True)
class Entry:
    """What one mask holds: pixels of each label value, and its size; or what is wrong with the sample."""

    pixels: dict[int, int]
    width: int = 0
    height: int = 0
    problem: str | None = None

    @classmethod
    def of(cls, label: np.ndarray) -> Entry:
        """The entry of a mask, uint8 H × W."""
        counts = np.bincount(label.ravel(), minlength=256)
        pixels = {int(value): int(counts[value]) for value in np.flatnonzero(counts)}
        return cls(pixels, label.shape[1], label.shape[0])

    def present(self) -> frozenset[int]:
        """The label values, 0 and 255 left out."""
        return frozenset(self.pixels) - {BACKGROUND, IGNORE}


class Dataset(Protocol):
    """A labelled collection with the splits "train" and "test": all that the package reads of one.

    A new data set subclasses it, sets `name` and `classes`, defines `ids` and `read`, and keeps the
    other attributes where their defaults fit.
    """

    name: str
    classes: tuple[str, ...]  # foreground classes; label value i + 1 is classes[i]
    has_background: bool = True  # False: label 0 means "not a class yet" and never enters a mean
    background_in_test: int = BACKGROUND  # what label 0 becomes in a test; 255 where it is no class
    domains: tuple[
        str, ...
    ] = ()  # where the images come from, if a task is to be divided by that (setup domains)
    default_task: str = ""  # taken where no task is given, such as "15-1"
    default_crop: int = 512
    default_mode: Literal["crop", "slide"] = "crop"  # of the test; "slide" where a centre crop misses classes
    skips_broken: bool = False  # set by the user: leave faulty samples out instead of stopping at the first
    left_out: dict[str, list[str]] = {}  # by split: what was wrong with them  # noqa: RUF012 - replaced, never changed

    def ids(self, split: str) -> list[str]:
        """Sorted ids of `split` ("train" or "test")."""
        ...

    def read(self, split: str, id: str) -> Sample:
        """Reads one sample; a broken file raises a TissError that names it."""
        ...

    def domain(self, id: str) -> str:
        """Which of `domains` an image comes from; asked only where there are any."""
        return ""

    def entries(self, split: str) -> dict[str, Entry]:
        """The class index: what each mask of `split` holds, faulty samples included; here by reading all of them."""
        from tiss.data.index import parallel_map

        ids = self.ids(split)
        found = parallel_map(partial(read_entry, self, split), ids, f"Reading {split}")
        return dict(zip(ids, found, strict=True))

    def classes_present(self, split: str) -> dict[str, frozenset[int]]:
        """For each id of `split`, the label values in its mask, 0 and 255 left out; see `judge` for faulty samples."""
        entries = self.entries(split)
        self.judge(split, [entry.problem for entry in entries.values() if entry.problem is not None])
        return {id: entry.present() for id, entry in entries.items() if entry.problem is None}

    def readable(self, split: str) -> list[str]:
        """The ids of `split`, without faulty samples where the user leaves them out."""
        return sorted(self.classes_present(split)) if self.skips_broken else self.ids(split)

    def judge(self, split: str, problems: list[str], remedy: str = "") -> None:
        """Notes the problems where faulty samples are left out, else raises the first."""
        if not self.skips_broken:
            stop_at(problems, remedy)
        known = self.left_out.get(split, [])
        self.left_out = self.left_out | {split: list(dict.fromkeys([*known, *problems]))}

    def sizes(self, split: str) -> dict[str, tuple[int, int]]:
        """Height and width by id, without faulty samples."""
        entries = self.entries(split)
        return {id: (one.height, one.width) for id, one in entries.items() if one.problem is None}

    def colours(self) -> list[tuple[int, int, int]] | None:
        """The customary RGB colours of label values 0..K, or None for the package's own palette."""
        return None

    def root_path(self) -> Path | None:
        """Where the files are; None for data made in memory."""
        return None


@dataclass(frozen=True)
class Split:
    """Images of one step, for training or for the test, and the channel of each label value in their files.

    `tables` has the tables of images kept in memory: they show the classes of the steps that the images come from.
    """

    dataset: Dataset
    split: str  # the data set's own split: "train" or "test"
    ids: tuple[str, ...]
    table: np.ndarray  # uint8[256]: label value → channel
    tables: Mapping[str, np.ndarray] = field(default_factory=dict)  # by id
    every: frozenset[str] = frozenset()  # the ids of all steps, for which a loader in memory reserves room

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labelled(self) -> tuple[int, ...]:
        """The channels of the classes that the images are labelled with."""
        return tuple(sorted(set(self.table.tolist()) - {BACKGROUND, IGNORE}))

    def read(self, index: int) -> Sample:
        """Sample `index` with its label in channels."""
        sample = read_checked(self.dataset, self.split, self.ids[index])
        table = self.tables.get(sample.id, self.table)
        label = torch.from_numpy(table)[sample.label.long()]
        return Sample(sample.image.contiguous(), label, sample.id)


@dataclass
class Batch:
    """What the engine hands to models and methods.

    `image` is uint8 N × 3 × H × W; `label` is int64 N × H × W in *channel* numbers, 255 = ignore, 0 = background.
    Normalisation lives in the model, so files, augmentations and exports cannot disagree about it.
    """

    image: Tensor
    label: Tensor
    ids: list[str]

    def to(self, device: torch.device | str) -> Batch:
        image, label = (one.to(device, non_blocking=True) for one in (self.image, self.label))
        return Batch(image, label, self.ids)


def read_checked(dataset: Dataset, split: str, id: str) -> Sample:
    """Reads one sample; a shape, type or label value that breaks the contract is an error that names the id."""
    sample = dataset.read(split, id)
    image, label, where = sample.image, sample.label, f"{dataset.name} {split} {id}"
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise TissError(f"{where}: the image must be uint8 3×H×W, found {_described(image)}")
    if label.dtype != torch.uint8 or label.shape != image.shape[1:]:
        wanted = "×".join(map(str, image.shape[1:]))
        raise TissError(f"{where}: the mask must be uint8 {wanted} like its image, found {_described(label)}")
    if 0 in label.shape:
        raise TissError(f"{where}: the image is empty")
    values = label.numpy()
    if int((values + np.uint8(1)).max()) > len(dataset.classes) + 1:  # 255 + 1 is 0
        check_labels(np.bincount(values.ravel(), minlength=256), where, len(dataset.classes))
    return sample


def check_labels(counts: np.ndarray, where: str, classes: int) -> None:
    """Raises if a label value above `classes` other than 255 has pixels; `counts` is int, 256."""
    illegal = np.flatnonzero(counts[classes + 1 : IGNORE]) + classes + 1
    if len(illegal):
        listed = ", ".join(f"{value} ({counts[value]} pixels)" for value in illegal[:5])
        raise TissError(f"{where}: label {listed} is not one of 0 to {classes} or {IGNORE}")


def read_entry(dataset: Dataset, split: str, id: str) -> Entry:
    """The entry of one sample, read whole."""
    try:
        return Entry.of(read_checked(dataset, split, id).label.numpy())
    except TissError as error:
        return Entry({}, problem=str(error))


def stop_at(problems: list[str], remedy: str = "") -> None:
    """Raises the first problem, if there is one, and says how many more there are."""
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise TissError(f"{problems[0]}{more}{remedy}")


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {'×'.join(map(str, tensor.shape))}"


_MODULES = ("shapes", "benchmarks", "cityscapes", "folder", "huggingface")
DATASETS: Registry[type] = Registry("data set", "datasets", tuple(f"tiss.data.{name}" for name in _MODULES))
