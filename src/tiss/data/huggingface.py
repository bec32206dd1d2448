"""A data set of the Hugging Face `datasets` library with an image and an annotation column."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tiss.data.base import DATASETS, IGNORE
from tiss.data.classes import (
    BACKGROUND_NAMES,
    CLASS_FILES,
    IGNORE_NAMES,
    find_file,
    read_classes,
    shift_labels,
)
from tiss.data.folder import Listing, PairedDataset
from tiss.data.images import Blob, load_mask
from tiss.data.index import Pair
from tiss.errors import TissError
from tiss.files import read_json

IMAGE_COLUMNS = ("image", "img", "picture", "pixel_values")
MASK_COLUMNS = (
    "annotation", "label", "mask", "labels", "segmentation", "segmentation_mask", "seg_map", "semantic",
)  # fmt: skip
TEST_SPLITS = ("test", "validation", "val", "valid")
NAMES = "id2label.json"


@DATASETS.register("huggingface")
class HuggingFace(PairedDataset):
    """A table of images and masks, from disk or from the hub.

    `root` is a folder written by `save_to_disk`, a folder of data files, or a name on the hub
    (`name:config`). Class names come from classes.txt (json, yaml) or id2label.json beside the data or in
    its hub repository, with the same meaning as in a `folder` data set: mask value v is entry v. `test`
    is the first of test, validation and val.
    """

    name = "huggingface"

    def __init__(self, root: str | Path | None) -> None:
        if not root:
            raise TissError("huggingface needs a folder or a data set's name on the hub", setting="data.root")
        self._source = os.path.expanduser(root)
        if self._source.startswith(("/", ".")) and not Path(self._source).exists():
            raise TissError(f"{self._source} does not exist", setting="data.root")
        self._root = Path(self._source)
        self._tables = _load(self._source)
        self.classes, self.has_background, self._ignored = _class_names(self._source)
        self.default_task = f"{max(1, len(self.classes) - 1)}-1"
        self._ready: dict[str, Any] = {}  # with the two columns alone, not decoded
        self._prepare()

    def root_path(self) -> Path | None:
        return self._root if self._root.is_dir() else None

    def splits(self) -> list[str]:
        """Which of train and test there are."""
        return list(self._tables)

    def find_pairs(self, split: str) -> Listing:
        """Row numbers with leading zeros, so that they sort as they come."""
        return Listing({f"{row:07d}": row for row in range(len(self._table(split)))})

    def find(self, split: str, item: int) -> Pair:
        row, found = self._table(split)[item], []
        for column in row:  # the image, then the mask
            name, value = f"{self._source}, {split} row {item}, {column}", row[column]
            if not isinstance(value, dict) or not (value.get("bytes") or value.get("path")):
                raise TissError(f"{name}: empty")
            found.append(Blob(value.get("bytes") or Path(value["path"]).read_bytes(), name))
        return Pair(*found)

    def label_kind(self, split: str) -> str:
        names = f"{self.classes} {self.has_background} {sorted(self._ignored)}"
        return f"{self._table(split)._fingerprint} {names}"

    def read_label(self, path: Blob) -> np.ndarray:
        values = load_mask(path)
        for value in self._ignored:
            values[values == value] = IGNORE
        return values if self.has_background else shift_labels(values, str(path), len(self.classes))

    def _table(self, split: str) -> Any:
        if split not in self._tables:
            found = ", ".join(self._tables)
            raise TissError(f"{self._source}: no {split} split, only {found}; see train_test_split")
        if split not in self._ready:
            from datasets import Image

            table = self._tables[split]
            columns = _find_columns(table.features, self._source)
            for column in columns:
                table = table.cast_column(column, Image(decode=False))
            self._ready[split] = table.select_columns(list(columns))
        return self._ready[split]


def _load(source: str) -> dict[str, Any]:
    try:
        import datasets
    except ImportError:
        raise TissError("huggingface needs the package datasets: pip install 'tiss[datasets]'") from None
    folder = Path(source)
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            found = datasets.load_from_disk(source)
        elif folder.exists():
            found = datasets.load_dataset(source)
        else:
            name, _, config = source.partition(":")
            found = datasets.load_dataset(name, config or None)
    except Exception as error:  # the library raises its own, arrow's, the hub's and the network's errors
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TissError(f"{source}: cannot be loaded ({reason})", setting="data.root") from error
    tables = dict(found) if isinstance(found, dict) else {"train": found}
    names = {"train": "train", "test": next((name for name in TEST_SPLITS if name in tables), "")}
    return {split: tables[name] for split, name in names.items() if name in tables}


def _find_columns(features: Any, source: str) -> tuple[str, str]:
    # other programs than the library write plain bytes, or their structure without saying that it is an image
    images = [
        name
        for name, feature in features.items()
        if type(feature).__name__ == "Image"
        or getattr(feature, "dtype", "") == "binary"
        or (isinstance(feature, dict) and "bytes" in feature)
    ]
    mask = next((name for name in MASK_COLUMNS if name in images), None)
    image = next((name for name in IMAGE_COLUMNS if name in images), None)
    rest = [name for name in images if name not in (mask, image)]
    mask, image = mask or (rest.pop() if rest else None), image or (rest.pop() if rest else None)
    if mask is None or image is None:
        raise TissError(f"{source}: needs an image and an annotation column, has {', '.join(features)}")
    return image, mask


def _class_names(source: str) -> tuple[tuple[str, ...], bool, frozenset[int]]:
    """Foreground names, whether mask value 0 is the background, and mask values to ignore."""
    folder = Path(source)
    if folder.is_dir() and find_file(folder, CLASS_FILES):
        listed = read_classes(folder)
        return listed.names, listed.background, frozenset()
    path = folder / NAMES
    if not folder.is_dir():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError

        with suppress(HfHubHTTPError, OSError, ValueError):
            path = Path(hf_hub_download(source.partition(":")[0], NAMES, repo_type="dataset"))
    if not path.is_file():
        raise TissError(f"{source}: class names are missing; put classes.txt or {NAMES} beside the data")
    return names_by_value(read_json(path), str(path))


def names_by_value(document: Any, where: str) -> tuple[tuple[str, ...], bool, frozenset[int]]:
    """As `_class_names`, from mask value → name; values named ignore or void are ignored.

    >>> names_by_value({"0": "background", "1": "cat", "2": "void"}, "x")
    (('cat',), True, frozenset({2}))
    """
    if not isinstance(document, dict) or not all(str(key).isdecimal() for key in document):
        raise TissError(f'{where}: expected mask values and names, such as {{"0": "background"}}')
    names = {int(key): str(name) for key, name in document.items()}
    ignored = frozenset(value for value, name in names.items() if name.lower() in IGNORE_NAMES)
    kept = {value: name for value, name in names.items() if value not in ignored}
    background = kept.get(0, "").lower() in BACKGROUND_NAMES
    if sorted(kept) != list(range(len(kept))) or len(kept) - background < 1 or len(kept) > IGNORE - 2:
        raise TissError(f"{where}: names must cover the values 0, 1, 2, … without a gap")
    return tuple(kept[value] for value in range(background, len(kept))), background, ignored
