"""Data sets of image and mask files: what they share, and your own, in `images/<split>/` and `masks/<split>/`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tiss.data.base import DATASETS, IGNORE, SPLITS, Dataset, Entry, Sample, stop_at
from tiss.data.classes import BACKGROUND_NAMES, ClassList, read_classes, shift_labels
from tiss.data.images import IMAGE_SUFFIXES, Colour, has_image_suffix, load_mask, read_pixels
from tiss.data.index import Pair, Scan, cache_file, check_same_size, make_index, scan_pair
from tiss.errors import TissError
from tiss.files import read_text

TEST_FOLDERS = ("test", "val", "validation", "valid")


@dataclass
class Listing:
    """The samples of a split, and all that is wrong with folders and lists (not with files' contents)."""

    pairs: Mapping[str, Pair | int]  # an int stands for a pair that `find` reads
    problems: list[str] = field(default_factory=list)


class PairedDataset(Dataset):
    """A data set of one image file and one mask file per sample, or of rows that hold their contents.

    A subclass defines `name`, `classes`, `find_pairs`, `needs` with `places` and `remedy`, and `read_label` and
    `label_kind` where masks are special.
    """

    needs: tuple[str, ...] = ()  # the folders that it is known by
    places: tuple[str, ...] = ("",)  # where they may be in the folder that the user named
    remedy = ""
    _colours: list[Colour] | None = None

    def __init__(self, root: str | None) -> None:
        if not root:
            raise TissError(f"{self.name} needs the folder that holds it", setting="data.root")
        folder = Path(root).expanduser()
        if not folder.is_dir():
            raise TissError(f"{folder} is not a folder", setting="data.root")
        roots = [folder / place for place in self.places]
        found = [place for place in roots if all((place / name).is_dir() for name in self.needs)]
        if not found:
            name = next(name for name in self.needs if not (roots[-1] / name).is_dir())
            near = [folder.resolve().parent, *(path for path in sorted(folder.iterdir()) if path.is_dir())]
            meant = next((path for path in near if all((path / name).is_dir() for name in self.needs)), None)
            remedy = f"did you mean {meant}?" if meant else self.remedy
            raise TissError(f"{folder} has no {Path(self.places[-1], name)}; {remedy}", setting="data.root")
        self._root = found[0]
        self._prepare()

    def _prepare(self) -> None:
        self._listings: dict[str, Listing] = {}
        self._entries: dict[str, dict[str, Entry]] = {}

    # What a subclass says

    def find_pairs(self, split: str) -> Listing:
        """The files of `split` ("train" or "test")."""
        raise NotImplementedError

    def find(self, split: str, item: Any) -> Pair:
        """The pair for an item of the listing: most often the item."""
        return item

    def read_label(self, path: Any) -> np.ndarray:
        """Label numbers of one mask file, uint8 H × W."""
        return load_mask(path)

    def label_kind(self, split: str) -> str:
        """Names the way in which `read_label` reads; a class index made in another way is not reused."""
        return "indices"

    # What the package asks

    def root_path(self) -> Path | None:
        return self._root

    def colours(self) -> list[Colour] | None:
        return self._colours

    def listing(self, split: str) -> Listing:
        """The samples of `split`, in order of id, with the faults of the lists; val means test."""
        split = {"val": "test", "validation": "test"}.get(split, split)
        if split not in SPLITS:
            raise TissError(f"{self.name} has no split {split!r}: use train or test")
        if split not in self._listings:
            found = self.find_pairs(split)
            self._listings[split] = Listing(dict(sorted(found.pairs.items())), found.problems)
        return self._listings[split]

    def pairs(self, split: str) -> Mapping[str, Any]:
        """Files by id, in order of id; a fault of the lists raises."""
        found = self.listing(split)
        if not found.pairs:
            stop_at(found.problems)
        self.judge(split, found.problems)
        return found.pairs

    def ids(self, split: str) -> list[str]:
        return list(self.pairs(split))

    def read(self, split: str, id: str) -> Sample:
        item = self.pairs(split).get(id)
        if item is None:
            raise TissError(f"{self.name}: no id {id!r} in its {split} split")
        pair = self.find(split, item)
        image = read_pixels(pair.image)
        label = self.read_label(pair.mask)
        check_same_size(pair.mask, label, (image.shape[2], image.shape[1]))
        return Sample(image, torch.from_numpy(label), id)

    def entries(self, split: str) -> dict[str, Entry]:
        if split not in self._entries:
            # who leaves faulty samples out wants to know all of them before training
            scan = partial(self.scan, split, decode=self.skips_broken)
            self._index(split, self.pairs(split), scan, kind=" decoded" if self.skips_broken else "")
        return self._entries[split]

    def check(self, split: str, decode: bool) -> tuple[list[str], dict[str, Entry]]:
        """Faults of folders and lists, and the class index, read again; with `decode` images are decoded too."""
        found = self.listing(split)
        self._index(split, found.pairs, partial(self.scan, split, decode=decode), fresh=True)
        return found.problems, self._entries[split]

    def scan(self, split: str, item: Pair | int, decode: bool = False) -> Entry:
        try:
            return scan_pair(self.find(split, item), self.read_label, len(self.classes), decode)
        except TissError as error:
            return Entry({}, problem=str(error))

    def _index(
        self, split: str, pairs: Mapping[str, Any], scan: Scan, kind: str = "", fresh: bool = False
    ) -> None:
        file = cache_file(f"{self.name}-{split}", str(self._root.resolve()))
        kind = f"{self.label_kind(split)} {len(self.classes)}{kind}"
        self._entries[split] = make_index(file, kind, pairs, scan, fresh)

    def judge(self, split: str, problems: list[str], remedy: str = "") -> None:
        remedy = remedy or f"; `tiss data verify {self.name} --root {self._root}` lists every fault"
        super().judge(split, problems, remedy)


def missing_folders(*folders: Path) -> list[str]:
    return [f"{folder}: the folder is missing" for folder in folders if not folder.is_dir()]


def read_list(path: Path) -> list[str]:
    """Ids from a split list, one per line: bare, or as a path to the image, whose stem it then is."""
    words = [line.split(maxsplit=1)[0] for line in read_text(path).splitlines() if line.strip()]
    return [Path(word).stem if "/" in word or "." in word else word for word in words]


@DATASETS.register("folder")
class Folder(PairedDataset):
    """Images and masks, paired by their names without suffix, in subfolders too.

    `train` is the folder train, or everything where there is no split at all; `test` is the first of test,
    val, validation and valid that is there. Masks hold class numbers in the order of the class list, 255 =
    ignore, or colours of `colours.txt`.
    """

    name = "folder"
    needs = ("images", "masks")
    remedy = "needed: images/train, masks/train, classes.txt"

    def __init__(self, root: str | None, classes: ClassList | None = None) -> None:
        super().__init__(root)
        found = classes or read_classes(self._root)
        self.classes = found.names
        self.has_background = found.background
        self.default_task = f"{max(1, len(found.names) - 1)}-1"
        self._named = found.colours
        # colour → mask value, before the shift that data without a background needs
        numbers = {name: value for value, name in enumerate(found.names, int(found.background))}
        special = dict.fromkeys(BACKGROUND_NAMES, 0) if found.background else {}
        self._map = {
            colour: numbers.get(name, special.get(name.lower(), IGNORE))
            for name, colour in found.colours.items()
        }

    def folder_of(self, split: str) -> str:
        """The folder below images and masks that holds `split`; "" where there are no splits."""
        images = self._root / "images"
        test = next((name for name in TEST_FOLDERS if (images / name).is_dir()), None)
        if split == "test":
            return test or split
        return split if test or (images / split).is_dir() else ""

    def has_test(self) -> bool:
        """Whether there is a test split."""
        return (self._root / "images" / self.folder_of("test")).is_dir()

    def find_pairs(self, split: str) -> Listing:
        name = self.folder_of(split)
        images, masks = self._root / "images" / name, self._root / "masks" / name
        problems = missing_folders(images, masks)
        if problems:
            return Listing({}, problems)
        photos = _by_stem(images, problems)
        labels = _by_stem(masks, problems)
        for these, those, what, folder in (
            (labels, photos, "image", images),
            (photos, labels, "mask", masks),
        ):
            missing = sorted(these.keys() - those.keys())
            problems += [f"{these[stem]}: no {what} of that name in {folder}" for stem in missing]
        for path in labels.values():
            if path.suffix.lower() in (".jpg", ".jpeg"):
                problems.append(f"{path}: a JPEG mask has lost its exact labels; export masks as PNG")
        if not photos:
            problems.append(f"{images}: no images in it ({' '.join(IMAGE_SUFFIXES)})")
        both = photos.keys() & labels.keys()
        return Listing({stem: Pair(str(photos[stem]), str(labels[stem])) for stem in both}, problems)

    def read_label(self, path: str) -> np.ndarray:
        values = load_mask(path, self._map or None)
        return values if self.has_background else shift_labels(values, path, len(self.classes))

    def label_kind(self, split: str) -> str:
        return f"folder background={self.has_background} map={sorted(self._map.items()) or None}"

    def colours(self) -> list[Colour] | None:
        if not set(self.classes) <= self._named.keys():
            return None
        black = [rgb for name, rgb in self._named.items() if name.lower() in BACKGROUND_NAMES]
        return [*(black or [(0, 0, 0)])[:1], *(self._named[name] for name in self.classes)]


def _by_stem(folder: Path, problems: list[str]) -> dict[str, Path]:
    """Image files under `folder` by their path without suffix; two files of one stem are a fault."""
    found: dict[str, Path] = {}
    for path in filter(has_image_suffix, sorted(folder.rglob("*"))):
        first = found.setdefault(path.relative_to(folder).with_suffix("").as_posix(), path)
        if first is not path:
            problems.append(f"{path}: {first.name} has the same name except for the suffix; remove one")
    return found
