"""Pascal VOC 2012 and ADE20K as they come from their makers."""

import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from tiss.data.base import DATASETS, IGNORE, stop_at
from tiss.data.classes import class_table
from tiss.data.folder import Listing, PairedDataset, missing_folders, read_list
from tiss.data.images import Colour, load_mask
from tiss.data.index import Pair, parallel_map
from tiss.errors import TissError
from tiss.files import atomic_folder, read_bytes, write_text

AUGMENTED, ORIGINAL = "SegmentationClassAug", "SegmentationClass"
ADE_FOLDER = "ADEChallengeData2016"


def voc_colours(count: int = 21) -> list[Colour]:
    """VOC's colour map: the bits of a label go to red, green and blue in turn, highest bit first.

    >>> voc_colours()[15]
    (192, 128, 128)
    """
    bits = np.arange(count)[:, None] >> np.arange(8) & 1  # lowest first
    colours = np.zeros((count, 3), int)
    for bit in range(8):
        colours[:, bit % 3] |= bits[:, bit] << (7 - bit // 3)
    return [(red, green, blue) for red, green, blue in colours.tolist()]


@DATASETS.register("voc")
class VOC(PairedDataset):
    """VOC 2012: 20 classes, 0 = background, 255 = border; `train` is train_aug (10,582), `test` val (1,449).

    `root` is VOC2012, VOCdevkit, or the folder that holds VOCdevkit. Masks come from SegmentationClassAug;
    where only SegmentationClass is there, `train` is VOC's own 1,464 images, with a warning: no published
    result uses them.
    """

    name = "voc"
    classes = (
        "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
        "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
        "tvmonitor",
    )  # fmt: skip
    default_task = "15-1"
    needs = ("JPEGImages",)
    places = ("", "VOC2012", "VOCdevkit/VOC2012")
    remedy = "`tiss data download voc` gets it"
    _colours = voc_colours()

    def find_pairs(self, split: str) -> Listing:
        augmented = (self._root / AUGMENTED).is_dir()
        masks = self._root / (AUGMENTED if augmented else ORIGINAL)
        if not masks.is_dir():
            problem = f"{self._root}: neither {AUGMENTED} nor {ORIGINAL} is there; see docs/data.md"
            return Listing({}, [problem])
        if split == "test":
            ids = self._list("val.txt")
        elif augmented:
            ids = self._augmented_ids(masks)
        else:
            print(
                f"tiss: {self._root}: no {AUGMENTED}, so training uses VOC's own 1,464 masks instead of the 10,582 "
                "of every published result; `tiss data download voc` makes them",
                file=sys.stderr,
            )
            ids = self._list("train.txt")
        twice = [id for id, count in Counter(ids).items() if count > 1]
        problems = [f"{self._root}: id {id} is there twice in the {split} list" for id in twice]
        images = self._root / "JPEGImages"
        return Listing({id: Pair(f"{images}/{id}.jpg", f"{masks}/{id}.png") for id in ids}, problems)

    def _augmented_ids(self, masks: Path) -> list[str]:
        try:
            return self._list("train_aug.txt", "trainaug.txt")
        except TissError:
            # The folder holds the masks of train_aug and val and nothing else, so the list follows from it.
            return sorted({path.stem for path in masks.glob("*.png")} - set(self._list("val.txt")))

    def _list(self, *names: str) -> list[str]:
        folders = [self._root / "ImageSets" / name for name in ("Segmentation", "SegmentationAug", "")]
        for path in (folder / name for folder in folders for name in names):
            if path.is_file():
                return read_list(path)
        raise TissError(f"{folders[0] / names[0]}: the list is missing; `tiss data download voc` gets it")


@DATASETS.register("ade20k")
class ADE20K(PairedDataset):
    """The scene-parsing challenge of 2016, 150 classes; `train` is training (20,210 images), `test` validation (2,000).

    Label 0, "other", is no class: it is the background in training and is ignored in a test. `root` is
    ADEChallengeData2016 or the folder that holds it.
    """

    name = "ade20k"
    classes, _colours = class_table("ade20k")
    has_background = False
    background_in_test = IGNORE
    default_task = "100-10"
    needs = ("images/training",)
    places = ("", ADE_FOLDER)
    remedy = "`tiss data download ade20k` gets it"

    def find_pairs(self, split: str) -> Listing:
        name = {"train": "training", "test": "validation"}[split]
        images, masks = self._root / "images" / name, self._root / "annotations" / name
        problems = missing_folders(images, masks)
        photos, labels = ({path.stem: path for path in folder.glob("[!.]*.*")} for folder in (images, masks))
        for stem in sorted(labels.keys() - photos.keys()):
            problems.append(f"{labels[stem]}: its image {images / stem}.jpg is missing")
        pairs = {
            stem: Pair(str(photos[stem]), str(labels.get(stem, masks / f"{stem}.png"))) for stem in photos
        }
        return Listing(pairs, problems)


# VOC's augmented masks are those of the Semantic Boundaries Dataset (SBD) beside VOC's own. SBD keeps them in MATLAB
# files (level 5); only as much of that format is read as they use.

_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_COMPRESSED = 15
_STRUCT, _NUMERIC_CLASSES = 2, range(6, 16)
_MAX_BYTES = 64 << 20


def make_augmented(voc: Path, sbd: Path) -> int:
    """Writes SegmentationClassAug and train_aug.txt into `voc` from SBD's folder; returns how many masks.

    VOC's own masks are kept where there are any (they have the border, 255); SBD gives the others. The list
    is SBD's train and val and VOC's train without VOC's val: 10,582 ids.
    """
    if (voc / AUGMENTED).exists():
        raise TissError(f"{voc / AUGMENTED}: already there; remove it to make it again")
    lists = voc / "ImageSets" / "Segmentation"
    own_train, own_test = set(read_list(lists / "train.txt")), set(read_list(lists / "val.txt"))
    places = [sbd / name for name in ("", "dataset", "benchmark_RELEASE/dataset")]
    source = next((place for place in places if (place / "cls").is_dir()), None)
    if source is None:
        raise TissError(f"{sbd} has no dataset/cls; give SBD's unpacked benchmark_RELEASE", setting="sbd")
    theirs = set(read_list(source / "train.txt")) | set(read_list(source / "val.txt"))
    train = (theirs | own_train) - own_test
    jobs = [voc / ORIGINAL / f"{id}.png" for id in sorted(own_train | own_test)]
    jobs += [source / "cls" / f"{id}.mat" for id in sorted(train - own_train)]
    with atomic_folder(voc / AUGMENTED, durable=False) as temporary:
        write = partial(_write_mask, folder=temporary)
        stop_at([fault for fault in parallel_map(write, jobs, "Writing masks") if fault])
        write_text(lists / "train_aug.txt", "".join(f"{id}\n" for id in sorted(train)))
    return len(jobs)


def _write_mask(source: Path, folder: Path) -> str | None:
    try:
        mask = read_matlab_mask(source) if source.suffix == ".mat" else load_mask(source)
    except TissError as error:
        return str(error)
    Image.fromarray(mask).save(folder / f"{source.stem}.png")
    return None


def read_matlab_mask(path: Path) -> np.ndarray:
    """GTcls.Segmentation of an SBD file, uint8 H × W."""
    data = read_bytes(path, _MAX_BYTES)
    try:
        if data[:6] != b"MATLAB" or data[126:128] not in (b"IM", b"MI"):
            raise ValueError("no MATLAB level 5 file")
        order = "<" if data[126:128] == b"IM" else ">"
        kind, body = next(_elements(data[128:], order))
        if kind == _COMPRESSED:
            stream = zlib.decompressobj()
            _, body = next(_elements(stream.decompress(body, _MAX_BYTES), order))
            if stream.unconsumed_tail:
                raise ValueError("too large")
        return _segmentation(body, order)
    except (ValueError, struct.error, zlib.error, IndexError, KeyError, TypeError, StopIteration) as error:
        raise TissError(f"{path}: not a mask of SBD ({error})") from None


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Kind and contents of the elements of a MATLAB file or matrix: tag, bytes, padding to eight."""
    place = 0
    while place < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, place)
        begin = place + 8
        if kind >> 16:  # up to four bytes are in the tag itself
            kind, size, begin, place = kind & 0xFFFF, kind >> 16, place + 4, begin
        else:
            place = begin + size + -size % 8
        if begin + size > len(data):
            raise ValueError("cut off")
        yield kind, data[begin : begin + size]


def _segmentation(body: bytes, order: str) -> np.ndarray:
    """The mask in a struct with a field Segmentation."""

    def numbers(element: tuple[int, bytes]) -> np.ndarray:
        return np.frombuffer(element[1], order + _NUMBERS[element[0]])

    flags, _, _, length, (_, names), *fields = _elements(body, order)
    if numbers(flags)[0] & 0xFF != _STRUCT:
        raise ValueError("no struct in it")
    width = int(numbers(length)[0])
    starts = range(0, len(names), width)
    found = {
        names[at : at + width].split(b"\0")[0]: field for at, (_, field) in zip(starts, fields, strict=True)
    }
    flags, dimensions, _, content = _elements(found[b"Segmentation"], order)
    shape, values = numbers(dimensions), numbers(content)
    if (
        numbers(flags)[0] & 0xFF not in _NUMERIC_CLASSES
        or len(shape) != 2
        or values.size != shape.prod(dtype=object)
    ):
        raise ValueError("no plain mask in it")
    if values.min(initial=0) < 0 or values.max(initial=0) > 255:
        raise ValueError("labels that do not fit")
    return np.ascontiguousarray(values.reshape(shape, order="F").astype(np.uint8))
