"""Your own data: `images/<split>/`, `masks/<split>/` and a class list."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tiss.data.base import DATASETS, IGNORE
from tiss.data.classes import BACKGROUND_NAMES, MOST_CLASSES, ClassList, read_classes, shift_labels
from tiss.data.images import IMAGE_SUFFIXES, Colour, has_image_suffix, load_mask
from tiss.data.index import Pair
from tiss.data.paired import Listing, PairedDataset
from tiss.errors import TissError

TEST_FOLDERS = ("test", "val", "validation", "valid")


@DATASETS.register("folder")
class Folder(PairedDataset):
    """Images and masks, paired by their names without suffix, in subfolders too.

    `train` is the folder train, or everything where there is no split at all; `test` is the first of test,
    val, validation and valid that is there. Masks hold class numbers in the order of the class list, 255 =
    ignore, or colours of `colours.txt`.
    """

    name = "folder"

    def __init__(self, root: str | None) -> None:
        super().__init__(root)
        self._use(read_classes(self._root))

    @classmethod
    def for_checking(cls, root: str) -> tuple[PairedDataset, list[str]]:
        """As the constructor, but a fault of the class list is returned: files can be checked as well."""
        try:
            return cls(root), []
        except TissError as error:
            dataset = cls.__new__(cls)
            PairedDataset.__init__(dataset, root)
            dataset._use(ClassList(tuple(f"class {n}" for n in range(1, MOST_CLASSES + 1)), True, {}))
            return dataset, [str(error)]

    def _use(self, found: ClassList) -> None:
        self.classes = found.names
        self.has_background = found.background
        self.default_task = f"{max(1, len(found.names) - 1)}-1"
        self._colours = found.colours
        self._map = self._colour_map() if found.colours else None

    def find_root(self, folder: Path) -> Path:
        for name in ("images", "masks"):
            if not (folder / name).is_dir():
                raise TissError(
                    f"{folder} has no {name}; needed: images/train, masks/train, classes.txt",
                    setting="data.root",
                )
        return folder

    def folder_of(self, split: str) -> str:
        """The folder below images and masks that holds `split`; "" where there are no splits."""
        images = self._root / "images"
        test = next((name for name in TEST_FOLDERS if (images / name).is_dir()), None)
        if split == "test":
            return test or split
        return split if test or (images / split).is_dir() or not images.is_dir() else ""

    def has_test(self) -> bool:
        """Whether there is a test split."""
        return (self._root / "images" / self.folder_of("test")).is_dir()

    def find_pairs(self, split: str) -> Listing:
        name = self.folder_of(split)
        images, masks = self._root / "images" / name, self._root / "masks" / name
        for folder in (images, masks):
            if not folder.is_dir():
                return Listing({}, [f"{folder}: the folder is missing"])
        problems: list[str] = []
        photos = _by_stem(images, problems)
        labels = _by_stem(masks, problems)
        for stem in sorted(labels.keys() - photos.keys()):
            problems.append(f"{labels[stem]}: no image of that name in {images}")
        for stem in sorted(photos.keys() - labels.keys()):
            problems.append(f"{photos[stem]}: no mask of that name in {masks}")
        for path in labels.values():
            if path.suffix.lower() in (".jpg", ".jpeg"):
                problems.append(f"{path}: a JPEG mask has lost its exact labels; export masks as PNG")
        both = sorted(photos.keys() & labels.keys())
        if not photos:
            problems.append(f"{images}: no images in it ({' '.join(IMAGE_SUFFIXES)})")
        return Listing({stem: Pair(str(photos[stem]), str(labels[stem])) for stem in both}, problems)

    def read_label(self, path: str) -> np.ndarray:
        values = load_mask(path, self._map)
        if self.has_background:
            return values
        return shift_labels(values, path, len(self.classes))

    def label_kind(self) -> str:
        return (
            f"folder background={self.has_background} map={sorted(self._map.items()) if self._map else None}"
        )

    def colours(self) -> list[Colour] | None:
        if any(name not in self._colours for name in self.classes):
            return None
        background = next(
            (rgb for name, rgb in self._colours.items() if name.lower() in BACKGROUND_NAMES), (0, 0, 0)
        )
        return [background, *(self._colours[name] for name in self.classes)]

    def _colour_map(self) -> dict[Colour, int]:
        """Colour → mask value, before the shift that data without a background needs."""
        first = 1 if self.has_background else 0
        numbers = {name: first + place for place, name in enumerate(self.classes)}
        result = {}
        for name, colour in self._colours.items():
            special = 0 if name.lower() in BACKGROUND_NAMES and self.has_background else IGNORE
            result[colour] = numbers.get(name, special)
        return result


def _by_stem(folder: Path, problems: list[str]) -> dict[str, Path]:
    """Image files under `folder` by their path without suffix; two files of one stem are a fault."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if not has_image_suffix(path):
            continue
        stem = path.relative_to(folder).with_suffix("").as_posix()
        if stem in found:
            problems.append(
                f"{path}: {found[stem].name} has the same name except for the suffix; rename or remove one"
            )
        else:
            found[stem] = path
    return found
