"""Data sets of the `datasets` library on disk (https://huggingface.co/docs/datasets/image_dataset)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiss.data.convert.labels import Found, Labelled
from tiss.data.huggingface import HuggingFace
from tiss.errors import TissError


def read_huggingface(source: Path, images: Path | None = None) -> Found:
    """All rows of the training and the test split of a folder of Parquet files, or one of `save_to_disk`."""
    if images is not None:
        raise TissError("the images of a Hugging Face data set are in its table", setting="images")
    dataset = HuggingFace(source)
    splits = dataset.splits()
    found = Found(["background", *dataset.classes], [])
    for split in splits:
        for id, number in dataset.pairs(split).items():
            row, where = Row(dataset, split, number), f"{source}, {split} row {number}"
            use = split if len(splits) > 1 else None
            found.images.append(Labelled(f"{split}-{id}", row.image, where, mask=row.mask, split=use))
    return found


@dataclass(frozen=True)
class Row:
    """A row of a table, read when it is needed."""

    dataset: HuggingFace
    split: str
    number: int

    def image(self) -> Any:
        return self.dataset.find(self.split, self.number).image

    def mask(self) -> np.ndarray:
        mask: Any = self.dataset.find(self.split, self.number).mask
        return self.dataset.read_label(mask)
