"""ADE20K as the scene-parsing challenge of 2016 has it: 150 classes."""

from __future__ import annotations

from pathlib import Path

from tiss.data.base import DATASETS, IGNORE
from tiss.data.classes import class_table
from tiss.data.images import Colour
from tiss.data.index import Pair
from tiss.data.paired import Listing, PairedDataset
from tiss.errors import TissError

FOLDER = "ADEChallengeData2016"


@DATASETS.register("ade20k")
class ADE20K(PairedDataset):
    """`train` is training (20,210 images), `test` is validation (2,000).

    Label 0, "other", is no class: it is the background in training and is ignored in a test. `root` is
    ADEChallengeData2016 or the folder that holds it.
    """

    name = "ade20k"
    classes = class_table("ade20k")[0]
    has_background = False
    background_in_test = IGNORE
    default_task = "100-10"

    def find_root(self, folder: Path) -> Path:
        for candidate in (folder, folder / FOLDER):
            if (candidate / "images" / "training").is_dir():
                return candidate
        raise TissError(
            f"{folder} has no {FOLDER}/images/training; `tiss data download ade20k` gets it",
            setting="data.root",
        )

    def find_pairs(self, split: str) -> Listing:
        name = {"train": "training", "test": "validation"}[split]
        images, masks = self._root / "images" / name, self._root / "annotations" / name
        problems = [f"{folder}: the folder is missing" for folder in (images, masks) if not folder.is_dir()]
        stems = {path.stem for path in images.glob("*.jpg")}
        for stem in sorted({path.stem for path in masks.glob("*.png")} - stems):
            problems.append(f"{masks / stem}.png: its image {images / stem}.jpg is missing")
        pairs = {stem: Pair(f"{images}/{stem}.jpg", f"{masks}/{stem}.png") for stem in stems}
        return Listing(pairs, problems)

    def colours(self) -> list[Colour]:
        return class_table("ade20k")[1]
