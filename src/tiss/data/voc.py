"""Pascal VOC 2012 for segmentation, with the augmented masks that the field trains on."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from tiss.data.base import DATASETS, stop_at
from tiss.data.images import MAX_PIXELS, Colour, load_mask
from tiss.data.index import Pair, parallel_map
from tiss.data.paired import Listing, PairedDataset, read_list
from tiss.errors import TissError
from tiss.files import atomic_folder, read_bytes, write_text

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip

AUGMENTED = "SegmentationClassAug"
ORIGINAL = "SegmentationClass"
_LISTS = ("ImageSets/Segmentation", "ImageSets/SegmentationAug", "ImageSets")


def voc_colours(count: int = 21) -> list[Colour]:
    """VOC's colour map: the bits of a label go to red, green and blue in turn, highest bit first.

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
    where only SegmentationClass is there, `train` is VOC's own 1,464 images, with a warning: no published
    result uses them.
    """

    name = "voc"
    classes = CLASSES
    default_task = "15-1"

    def find_root(self, folder: Path) -> Path:
        for candidate in (folder, folder / "VOC2012", folder / "VOCdevkit" / "VOC2012"):
            if (candidate / "JPEGImages").is_dir():
                return candidate
        raise TissError(
            f"{folder} has no VOC2012/JPEGImages; `tiss data download voc` gets it", setting="data.root"
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
                "of every published result; `tiss data download voc` makes them",
                stacklevel=2,
            )
        masks = self._root / (AUGMENTED if augmented else ORIGINAL)
        ids = self._train_ids(masks, augmented) if split == "train" else read_list(self._list("val.txt"))
        twice = [id for id, count in Counter(ids).items() if count > 1]
        problems = [f"{self._root}: id {id} is there twice in the {split} list" for id in twice]
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
            f"{self._root / _LISTS[0] / names[0]}: the list is missing; `tiss data download voc` gets it"
        )

    def colours(self) -> list[Colour]:
        return voc_colours()


# The augmented masks: those of the Semantic Boundaries Dataset (SBD) beside VOC's own. SBD keeps its masks in
# MATLAB files (level 5); only as much of that format is read as they use.

_HEADER = 128
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15
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
    source = _find_sbd(sbd)
    theirs = set(read_list(source / "train.txt")) | set(read_list(source / "val.txt"))
    train = (theirs | own_train) - own_test
    jobs = [(id, voc / ORIGINAL / f"{id}.png") for id in sorted(own_train | own_test)]
    jobs += [(id, source / "cls" / f"{id}.mat") for id in sorted(train - own_train)]
    with atomic_folder(voc / AUGMENTED, durable=False) as temporary:
        write = partial(_write_mask, folder=temporary)
        stop_at([fault for fault in parallel_map(write, jobs, "Writing masks") if fault])
        write_text(lists / "train_aug.txt", "".join(f"{id}\n" for id in sorted(train)))
    return len(jobs)


def _write_mask(job: tuple[str, Path], folder: Path) -> str | None:
    id, source = job
    try:
        mask = read_matlab_mask(source) if source.suffix == ".mat" else load_mask(source)
    except TissError as error:
        return str(error)
    Image.fromarray(mask).save(folder / f"{id}.png")
    return None


def _find_sbd(folder: Path) -> Path:
    for candidate in (folder, folder / "dataset", folder / "benchmark_RELEASE" / "dataset"):
        if (candidate / "cls").is_dir():
            return candidate
    raise TissError(f"{folder} has no dataset/cls; give SBD's unpacked benchmark_RELEASE", setting="sbd")


def read_matlab_mask(path: Path) -> np.ndarray:
    """GTcls.Segmentation of an SBD file, uint8 H × W."""
    data = read_bytes(path, _MAX_BYTES)
    try:
        if data[:6] != b"MATLAB" or data[126:128] not in (b"IM", b"MI"):
            raise ValueError("no MATLAB level 5 file")
        order = "<" if data[126:128] == b"IM" else ">"
        reader = _Reader(data[_HEADER:], order)
        kind, body = reader.element()
        if kind == _COMPRESSED:
            kind, body = _Reader(_inflate(body), order).element()
        mask = _segmentation(_Reader(body, order))
    except (ValueError, struct.error, zlib.error, IndexError, KeyError, TypeError) as error:
        raise TissError(f"{path}: not a mask of SBD ({error})") from None
    return mask


def _inflate(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    result = stream.decompress(data, _MAX_BYTES)
    if stream.unconsumed_tail:
        raise ValueError("too large")
    return result


class _Reader:
    """Reads the elements of a MATLAB file: tag, bytes, padding to eight."""

    def __init__(self, data: bytes, order: str) -> None:
        self.data, self.order, self.place = data, order, 0

    def element(self) -> tuple[int, bytes]:
        kind, size = struct.unpack_from(f"{self.order}II", self.data, self.place)
        if kind >> 16:  # up to four bytes are in the tag itself
            kind, size, begin, step = kind & 0xFFFF, kind >> 16, self.place + 4, 8
        else:
            begin = self.place + 8
            # A compressed element is not padded.
            step = 8 + size + (-size % 8 if kind != _COMPRESSED else 0)
        if begin + size > len(self.data):
            raise ValueError("cut off")
        self.place += step
        return kind, self.data[begin : begin + size]

    def numbers(self) -> np.ndarray:
        kind, data = self.element()
        return np.frombuffer(data, self.order + _NUMBERS[kind])

    def header(self) -> tuple[int, tuple[int, ...]]:
        """Class and dimensions of the matrix that starts here; its name is skipped."""
        flags, dimensions = self.numbers(), self.numbers()
        self.element()
        return int(flags[0]) & 0xFF, tuple(int(length) for length in dimensions)


def _segmentation(reader: _Reader) -> np.ndarray:
    kind, _ = reader.header()
    if kind != _STRUCT:
        raise ValueError("no struct in it")
    length = int(reader.numbers()[0])
    _, names = reader.element()
    fields = [names[at : at + length].split(b"\0")[0] for at in range(0, len(names), length)]
    for field in fields:
        tag, body = reader.element()
        if field == b"Segmentation" and tag == _MATRIX:
            return _matrix(_Reader(body, reader.order))
    raise ValueError("no field Segmentation")


def _matrix(reader: _Reader) -> np.ndarray:
    kind, shape = reader.header()
    if kind not in _NUMERIC_CLASSES or len(shape) != 2 or shape[0] * shape[1] > MAX_PIXELS:
        raise ValueError(f"a mask of class {kind} and shape {shape}")
    values = reader.numbers()
    if values.size != shape[0] * shape[1] or values.min(initial=0) < 0 or values.max(initial=0) > 255:
        raise ValueError("labels that do not fit")
    return np.ascontiguousarray(values.reshape(shape, order="F").astype(np.uint8))
