"""Cityscapes as it comes from its makers, by class and by city."""

from collections.abc import Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from tiss.data.base import DATASETS, IGNORE, SPLITS, Entry, check_labels
from tiss.data.classes import class_table, read_table
from tiss.data.folder import Listing, PairedDataset, missing_folders
from tiss.data.images import MAX_PIXELS, load_mask
from tiss.data.index import Pair
from tiss.errors import TissError
from tiss.files import read_json

IMAGE = "_leftImg8bit.png"
TRAIN_IDS, LABEL_IDS, POLYGONS = "_gtFine_labelTrainIds.png", "_gtFine_labelIds.png", "_gtFine_polygons.json"
# labels whose label id is above 19; hardly a street is without vegetation
_BEYOND_TRAIN_IDS = frozenset(range(8, 20))
_LOOKED_AT = 100  # masks per split that are decoded to see whether they were resized by interpolation


@DATASETS.register("cityscapes")
class Cityscapes(PairedDataset):
    """19 classes of street scenes, without a background: train ids in their order as label values 1 to 19.

    Void is 255; `test` is val, whose labels are public. `root` holds leftImg8bit and gtFine. Labels come from
    labelTrainIds, else labelIds, else the polygons, drawn in the order of the file as the data set's own tools do.
    """

    name = "cityscapes"
    classes, _colours = class_table("cityscapes")
    has_background = False
    default_task = "14-1"
    default_mode = "slide"  # a centre crop of a street leaves out half of the labelled pixels
    needs = ("leftImg8bit", "gtFine")
    places = ("", "cityscapes")
    remedy = "see `tiss data download cityscapes`"

    def find_pairs(self, split: str) -> Listing:
        name = {"train": "train", "test": "val"}[split]
        images, masks = self._root / "leftImg8bit" / name, self._root / "gtFine" / name
        problems = missing_folders(images, masks)
        pairs = {}
        for path in sorted(images.glob(f"*/*{IMAGE}")):
            id = path.name.removesuffix(IMAGE)
            stem = masks / path.parent.name / id
            found = [f"{stem}{ending}" for ending in (TRAIN_IDS, LABEL_IDS, POLYGONS)]
            pairs[id] = Pair(str(path), next((mask for mask in found if Path(mask).is_file()), found[0]))
        if not pairs and not problems:
            problems.append(f"{images}: no images named CITY/*{IMAGE} in it")
        return Listing(pairs, problems)

    def read_label(self, path: str) -> np.ndarray:
        if path.endswith(POLYGONS):
            return draw_polygons(path)
        values = load_mask(path)
        by_label_id = path.endswith(LABEL_IDS)
        counts = np.bincount(values.ravel(), minlength=256)
        if by_label_id and counts[IGNORE]:
            raise TissError(f"{path}: label 255 is a train id; end the names of such files in {TRAIN_IDS}")
        check_labels(counts, path, 33 if by_label_id else len(self.classes) - 1)
        if by_label_id:
            return _from_label_ids()[values]
        return np.where(values == IGNORE, values, values + np.uint8(1))

    def check(self, split: str, decode: bool) -> tuple[list[str], dict[str, Entry]]:
        """Also faults of labelIds that hold legal numbers only: train ids, and masks resized by interpolation."""
        faults, entries = super().check(split, decode)
        pairs: Mapping[str, Any] = self.listing(split).pairs
        read = [id for id, one in entries.items() if not one.problem and pairs[id].mask.endswith(LABEL_IDS)]
        if read and not any(entries[id].present() & _BEYOND_TRAIN_IDS for id in read):
            example = f"{pairs[read[0]].mask} (and {len(read) - 1} more)"
            faults = [*faults, f"{example}: no label above 19, so train ids; end such names in {TRAIN_IDS}"]
        looked = [pairs[id].mask for id in read[:: 1 + len(read) // _LOOKED_AT]]
        blended = [path for path in looked if _is_blended(load_mask(path))]
        if blended:
            what = f"{blended[0]}: resized by interpolation, which makes up labels between two classes"
            remedy = f"{len(blended)} of {len(looked)} masks looked at; resize labels by nearest neighbour"
            faults = [*faults, f"{what} ({remedy})"]
        return faults, entries


@DATASETS.register("cityscapes-domains")
class CityscapesDomains(Cityscapes):
    """Cityscapes by city, all 19 classes in every step: 21 cities in the order of PLOP's code, those of val last.

    Of each city every fifth image, in the order of ids, is for the test.
    """

    name = "cityscapes-domains"
    domains = (
        "aachen", "bremen", "darmstadt", "erfurt", "hanover", "krefeld", "strasbourg", "tubingen", "weimar",
        "bochum", "cologne", "dusseldorf", "hamburg", "jena", "monchengladbach", "stuttgart", "ulm", "zurich",
        "frankfurt", "lindau", "munster",
    )  # fmt: skip
    default_task = "11-5"

    def domain(self, id: str) -> str:
        return id.partition("_")[0]

    def find_pairs(self, split: str) -> Listing:
        both = [Cityscapes.find_pairs(self, name) for name in SPLITS]
        pairs = dict(sorted(chain(*(one.pairs.items() for one in both))))
        cities: dict[str, list[str]] = {city: [] for city in self.domains}
        for id in pairs:
            cities.setdefault(self.domain(id), []).append(id)
        tested = {id for ids in cities.values() for id in ids[4::5]}
        problems = [problem for one in both for problem in one.problems]
        problems += [f"{self._root}: no image of {city} in it" for city, ids in cities.items() if not ids]
        strange = sorted(cities.keys() - set(self.domains))
        problems += [f"{self._root}: {city} is none of the 21 cities with labels" for city in strange]
        return Listing({id: pairs[id] for id in pairs if (id in tested) == (split == "test")}, problems)


def _is_blended(values: np.ndarray) -> bool:
    """Whether labels change by way of the numbers between them: at 27 % of such places or more in a mask that was
    resized so, at 2 % or less in a true one."""
    left, middle, right = values[:, :-2], values[:, 1:-1], values[:, 2:]
    between = (np.minimum(left, right) < middle) & (middle < np.maximum(left, right))
    return bool(between.sum() > 0.1 * (left != right).sum())


@cache
def _from_label_ids() -> np.ndarray:
    table = np.full(256, IGNORE, np.uint8)
    for row in read_table("cityscapes_classes"):
        table[int(row["label_id"])] = int(row["label"])
    return table


def draw_polygons(path: str) -> np.ndarray:
    """Labels from a polygon file, uint8 H × W: objects in the order of the file, later ones on top."""
    document = read_json(path)
    numbers = {name: label for label, name in enumerate(Cityscapes.classes, 1)}
    numbers["polegroup"] = IGNORE  # the one group that the data set's own tools do not count as its class
    try:
        size = (int(document["imgWidth"]), int(document["imgHeight"]))
        if min(size) < 1 or size[0] * size[1] > MAX_PIXELS:
            raise TissError(f"{path}: a size of {size[0]} × {size[1]} is not drawn")
        mask = Image.new("L", size, IGNORE)
        draw = ImageDraw.Draw(mask)
        for item in document["objects"]:
            name = str(item["label"])
            if name == "license plate" or item.get("deleted"):  # its id is negative: the car behind it counts
                continue
            label = numbers.get(name, numbers.get(name.removesuffix("group"), IGNORE))
            draw.polygon([(float(x), float(y)) for x, y in item["polygon"]], fill=label)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise TissError(f"{path}: not a Cityscapes polygon file ({type(error).__name__}: {error})") from None
    return np.array(mask)
