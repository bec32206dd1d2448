"""Pascal VOC 2012 for segmentation, with the augmented masks that the field trains on."""

from __future__ import annotations

import warnings
from pathlib import Path

from tiss.data.base import DATASETS
from tiss.data.images import Colour
from tiss.data.index import Pair
from tiss.data.paired import Listing, PairedDataset, read_list
from tiss.errors import TissError

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip

AUGMENTED = "SegmentationClassAug"
ORIGINAL = "SegmentationClass"
_LISTS = ("ImageSets/Segmentation", "ImageSets/SegmentationAug", "ImageSets")


def voc_colours(count: int = 21) -> list[Colour]:
    """VOC's colour map: the bits of a label are dealt to red, green and blue in turn, highest bit first.

    >>> voc_colours()[15]
    (192, 128, 128)
    """
    colours = []
    for label in range(count):
        channels = [0, 0, 0]
        for bit in range(8):
            channels[bit % 3] |= (label >> bit & 1) << (7 - bit // 3)
        colours.append((channels[0], channels[1], channels[2]))
    return colours


@DATASETS.register("voc")
class VOC(PairedDataset):
    """VOC 2012: 20 classes, 0 = background, 255 = border; `train` is train_aug (10,582), `test` val (1,449).

    `root` is VOC2012, VOCdevkit, or the folder that holds VOCdevkit. Masks come from SegmentationClassAug;
    where only SegmentationClass is there, `train` is VOC's own 1,464 pictures, with a warning: no published
    figure of the field uses them.
    """

    name = "voc"
    classes = CLASSES
    default_task = "15-1"

    def find_root(self, folder: Path) -> Path:
        for candidate in (folder, folder / "VOC2012", folder / "VOCdevkit" / "VOC2012"):
            if (candidate / "JPEGImages").is_dir():
                return candidate
        raise TissError(
            f"--data.root: no VOC2012/JPEGImages under {folder}; `tiss data download voc` fetches it"
        )

    def find_pairs(self, split: str) -> Listing:
        augmented = (self._root / AUGMENTED).is_dir()
        if not augmented and not (self._root / ORIGINAL).is_dir():
            return Listing(
                {}, [f"{self._root}: neither {AUGMENTED} nor {ORIGINAL} is there; see docs/data.md"]
            )
        if not augmented and split == "train":
            warnings.warn(
                f"{self._root}: no {AUGMENTED}, so training uses VOC's own 1,464 masks instead of the 10,582 "
                "of every published figure; `tiss data download voc` makes them",
                stacklevel=2,
            )
        masks = self._root / (AUGMENTED if augmented else ORIGINAL)
        ids = self._train_ids(masks, augmented) if split == "train" else read_list(self._list("val.txt"))
        problems = [f"{self._root}: id {id} stands twice in the {split} list" for id in _twice(ids)]
        images = str(self._root / "JPEGImages")
        return Listing({id: Pair(f"{images}/{id}.jpg", f"{masks}/{id}.png") for id in ids}, problems)

    def _train_ids(self, masks: Path, augmented: bool) -> list[str]:
        if not augmented:
            return read_list(self._list("train.txt"))
        try:
            return read_list(self._list("train_aug.txt", "trainaug.txt"))
        except TissError:
            # The folder holds the masks of train_aug and val and nothing else, so the list follows from it.
            return sorted({path.stem for path in masks.glob("*.png")} - set(read_list(self._list("val.txt"))))

    def _list(self, *names: str) -> Path:
        for folder in _LISTS:
            for name in names:
                if (self._root / folder / name).is_file():
                    return self._root / folder / name
        raise TissError(
            f"{self._root / _LISTS[0] / names[0]}: the list is missing; `tiss data download voc` fetches it"
        )

    def colours(self) -> list[Colour]:
        return voc_colours()


def _twice(ids: list[str]) -> list[str]:
    seen: set[str] = set()
    return [id for id in ids if id in seen or seen.add(id)]  # type: ignore[func-returns-value]
