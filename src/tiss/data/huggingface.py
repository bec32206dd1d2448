"""A data set of the Hugging Face `datasets` library with an image and an annotation column."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tiss.data.base import DATASETS, IGNORE, Dataset, Entry, Sample, check_labels
from tiss.data.classes import (
    BACKGROUND_NAMES,
    CLASS_FILES,
    IGNORE_NAMES,
    find_file,
    read_classes,
    shift_labels,
)
from tiss.data.images import Blob, image_size, load_mask, read_image
from tiss.data.index import cache_file, check_same_size, make_index
from tiss.errors import TissError
from tiss.files import read_json

IMAGE_COLUMNS = ("image", "img", "picture", "pixel_values")
MASK_COLUMNS = (
    "annotation", "label", "mask", "labels", "segmentation", "segmentation_mask", "seg_map", "semantic",
)  # fmt: skip
TEST_SPLITS = ("test", "validation", "val", "valid")
NAMES = "id2label.json"


@DATASETS.register("huggingface")
class HuggingFace(Dataset):
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
        self._source = str(Path(root).expanduser()) if str(root).startswith("~") else str(root)
        if self._source.startswith(("/", ".")) and not Path(self._source).exists():
            raise TissError(f"{self._source} does not exist", setting="data.root")
        self._tables = _load(self._source)
        names, self.has_background, self._ignored = _class_names(self._source)
        self.classes = tuple(names)
        self.default_task = f"{max(1, len(self.classes) - 1)}-1"
        self._columns: dict[str, tuple[str, str]] = {}

    def root_path(self) -> Path | None:
        return Path(self._source) if Path(self._source).is_dir() else None

    def ids(self, split: str) -> list[str]:
        """Row numbers with leading zeros, so that they sort as they come."""
        return [f"{row:07d}" for row in range(len(self._table(split)))]

    def read(self, split: str, id: str) -> Sample:
        blob, mask = self._blobs(split, int(id))
        image = read_image(blob)
        label = self._label(mask)
        check_same_size(mask, label, (image.shape[2], image.shape[1]))
        return Sample(image, torch.from_numpy(label), id)

    def entries(self, split: str) -> dict[str, Entry]:
        """The class index, kept under the table's own fingerprint."""
        table = self._table(split)
        key = f"{table._fingerprint} {self.classes} {self.has_background} {sorted(self._ignored)}"
        file = cache_file("huggingface", f"{self._source} {split}")
        rows = {id: int(id) for id in self.ids(split)}
        return make_index(file, key, rows, partial(self._scan, split=split))

    def _scan(self, row: int, split: str) -> Entry:
        try:
            image, mask = self._blobs(split, row)
            label = self._label(mask)
            check_same_size(mask, label, image_size(image))
            check_labels(np.bincount(label.ravel(), minlength=256), str(mask), len(self.classes))
        except TissError as error:
            return Entry({}, problem=str(error))
        return Entry.of(label)

    def _label(self, mask: Blob) -> np.ndarray:
        values = load_mask(mask)
        for value in self._ignored:
            values[values == value] = IGNORE
        return values if self.has_background else shift_labels(values, str(mask), len(self.classes))

    def _blobs(self, split: str, row: int) -> tuple[Blob, Blob]:
        table = self._table(split)
        if not 0 <= row < len(table):
            raise TissError(f"{self._source}: no row {row} in its {split} split")
        values = table[row]
        columns = self._columns[split]
        where = f"{self._source}, {split} row {row}"
        image, mask = (_blob(values[column], f"{where}, {column}") for column in columns)
        return image, mask

    def _table(self, split: str) -> Any:
        split = "test" if split in TEST_SPLITS else split
        if split not in self._tables:
            raise TissError(
                f"{self._source}: no {split} split, only {', '.join(self._tables)}; see train_test_split"
            )
        if split not in self._columns:
            from datasets import Image

            table = self._tables[split]
            self._columns[split] = _find_columns(table.features, self._source)
            for column in self._columns[split]:
                table = table.cast_column(column, Image(decode=False))
            self._tables[split] = table.select_columns(list(self._columns[split]))
        return self._tables[split]


def _load(source: str) -> dict[str, Any]:
    """The tables of train and test."""
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
    test = next((tables[name] for name in TEST_SPLITS if name in tables), None)
    return {
        name: table for name, table in (("train", tables.get("train")), ("test", test)) if table is not None
    }


def _find_columns(features: Any, source: str) -> tuple[str, str]:
    """Names of the image and of the annotation column."""
    images = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    mask = next((name for name in MASK_COLUMNS if name in images), None)
    image = next((name for name in IMAGE_COLUMNS if name in images), None)
    rest = [name for name in images if name not in (mask, image)]
    mask, image = mask or (rest.pop() if rest else None), image or (rest.pop() if rest else None)
    if mask is None or image is None:
        raise TissError(f"{source}: needs an image and an annotation column, has {', '.join(features)}")
    return image, mask


def _blob(value: Any, name: str) -> Blob:
    if not isinstance(value, dict) or not (value.get("bytes") or value.get("path")):
        raise TissError(f"{name}: empty")
    return Blob(value["bytes"] if value.get("bytes") else Path(value["path"]).read_bytes(), name)


def _class_names(source: str) -> tuple[list[str], bool, frozenset[int]]:
    """Foreground names, whether mask value 0 is the background, and mask values to ignore."""
    folder = Path(source)
    if folder.is_dir():
        if find_file(folder, CLASS_FILES) is not None:
            listed = read_classes(folder)
            return list(listed.names), listed.background, frozenset()
        path = folder / NAMES
    else:
        path = _from_hub(source.partition(":")[0])
    if not path.is_file():
        raise TissError(f"{source}: class names are missing; put classes.txt or {NAMES} beside the data")
    return names_by_value(read_json(path), str(path))


def _from_hub(name: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(hf_hub_download(name, NAMES, repo_type="dataset"))
    except (HfHubHTTPError, OSError, ValueError):
        return Path(NAMES + " (not in the repository)")


def names_by_value(document: Any, where: str) -> tuple[list[str], bool, frozenset[int]]:
    """As `_class_names`, from mask value → name; values named ignore or void are ignored.

    >>> names_by_value({"0": "background", "1": "cat", "2": "void"}, "x")
    (['cat'], True, frozenset({2}))
    """
    if not isinstance(document, dict) or not all(str(key).isdecimal() for key in document):
        raise TissError(f'{where}: expected mask values and names, such as {{"0": "background"}}')
    names = {int(key): str(name) for key, name in document.items()}
    ignored = frozenset(value for value, name in names.items() if name.lower() in IGNORE_NAMES)
    kept = {value: name for value, name in names.items() if value not in ignored}
    background = kept.get(0, "").lower() in BACKGROUND_NAMES
    if sorted(kept) != list(range(len(kept))) or len(kept) - background < 1 or len(kept) > IGNORE - 2:
        raise TissError(f"{where}: names must cover the values 0, 1, 2, … without a gap")
    ordered = [kept[value] for value in sorted(kept)]
    return (ordered[1:] if background else ordered), background, ignored
