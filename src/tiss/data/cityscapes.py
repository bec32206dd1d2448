"""Cityscapes: 19 classes of street scenes, no background."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tiss.data.base import DATASETS, IGNORE, check_labels
from tiss.data.classes import class_table, read_table
from tiss.data.images import MAX_PIXELS, Colour, load_mask
from tiss.data.index import Pair
from tiss.data.paired import Listing, PairedDataset
from tiss.errors import TissError
from tiss.files import read_json

IMAGE = "_leftImg8bit.png"
TRAIN_IDS, LABEL_IDS, POLYGONS = "_gtFine_labelTrainIds.png", "_gtFine_labelIds.png", "_gtFine_polygons.json"
_NOT_DRAWN = ("license plate",)  # its id is negative: the car behind it counts


@DATASETS.register("cityscapes")
class Cityscapes(PairedDataset):
    """Train ids in their order as label values 1 to 19; void is 255; `test` is val, whose labels are public.

    `root` holds leftImg8bit and gtFine. Labels come from labelTrainIds, else labelIds, else the polygons,
    drawn in the order of the file as the data set's own tools do.
    """

    name = "cityscapes"
    classes = class_table("cityscapes")[0]
    has_background = False
    default_task = "14-1"

    def find_root(self, folder: Path) -> Path:
        for candidate in (folder, folder / "cityscapes"):
            if (candidate / "leftImg8bit").is_dir() and (candidate / "gtFine").is_dir():
                return candidate
        raise TissError(
            f"{folder} needs leftImg8bit and gtFine; see `tiss data download cityscapes`", setting="data.root"
        )

    def find_pairs(self, split: str) -> Listing:
        name = {"train": "train", "test": "val"}[split]
        images, masks = self._root / "leftImg8bit" / name, self._root / "gtFine" / name
        problems = [f"{folder}: the folder is missing" for folder in (images, masks) if not folder.is_dir()]
        pairs = {}
        for path in sorted(images.glob(f"*/*{IMAGE}")):
            id = path.name.removesuffix(IMAGE)
            stem = masks / path.parent.name / id
            found = [f"{stem}{ending}" for ending in (TRAIN_IDS, LABEL_IDS, POLYGONS)]
            mask = next((mask for mask in found if Path(mask).is_file()), found[0])
            pairs[id] = Pair(str(path), mask)
        if not pairs and not problems:
            problems.append(f"{images}: no images named CITY/*{IMAGE} in it")
        return Listing(pairs, problems)

    def read_label(self, path: str) -> np.ndarray:
        if path.endswith(POLYGONS):
            return draw_polygons(path)
        values = load_mask(path)
        if path.endswith(LABEL_IDS):
            check_labels(np.bincount(values.ravel(), minlength=256), path, 33)
            return _from_label_ids()[values]
        check_labels(np.bincount(values.ravel(), minlength=256), path, len(self.classes) - 1)
        return np.where(values == IGNORE, values, values + np.uint8(1))

    def colours(self) -> list[Colour]:
        return class_table("cityscapes")[1]


@cache
def _from_label_ids() -> np.ndarray:
    table = np.full(256, IGNORE, np.uint8)
    for row in read_table("cityscapes_classes"):
        table[int(row["label_id"])] = int(row["label"])
    return table


def draw_polygons(path: str) -> np.ndarray:
    """Labels from a polygon file, uint8 H × W: objects in the order of the file, later ones on top."""
    document = read_json(path)
    numbers = {name: label for label, name in enumerate(class_table("cityscapes")[0], 1)}
    try:
        size = (int(document["imgWidth"]), int(document["imgHeight"]))
        if min(size) < 1 or size[0] * size[1] > MAX_PIXELS:
            raise TissError(f"{path}: a size of {size[0]} × {size[1]} is not drawn")
        mask = Image.new("L", size, IGNORE)
        draw = ImageDraw.Draw(mask)
        for item in document["objects"]:
            name = str(item["label"])
            if name in _NOT_DRAWN or item.get("deleted"):
                continue
            label = numbers.get(name, numbers.get(name.removesuffix("group"), IGNORE))
            draw.polygon([(float(x), float(y)) for x, y in item["polygon"]], fill=label)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise TissError(f"{path}: not a Cityscapes polygon file ({type(error).__name__}: {error})") from None
    return np.array(mask)
