"""The augmented masks of VOC: those of the Semantic Boundaries Dataset (SBD) beside VOC's own.

SBD keeps its masks in MATLAB files (level 5). Only as much of that format is read as they use.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from tiss.data.images import MAX_PIXELS, load_mask
from tiss.data.index import parallel_map
from tiss.data.paired import read_list
from tiss.data.voc import AUGMENTED, ORIGINAL
from tiss.errors import TissError
from tiss.files import read_bytes, write_text

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
    temporary = Path(tempfile.mkdtemp(prefix=f".{AUGMENTED}-", dir=voc))
    try:
        write = partial(_write_mask, folder=temporary)
        faults = [fault for fault in parallel_map(write, jobs, "Writing masks") if fault]
        if faults:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            raise TissError(f"{faults[0]}{more}")
        write_text(lists / "train_aug.txt", "".join(f"{id}\n" for id in sorted(train)))
        temporary.chmod(0o755)
        temporary.rename(voc / AUGMENTED)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
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
    raise TissError(f"--sbd: no dataset/cls under {folder}; it takes SBD's unpacked benchmark_RELEASE")


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
    """Goes through the elements of a MATLAB file: tag, bytes, padding to eight."""

    def __init__(self, data: bytes, order: str) -> None:
        self.data, self.order, self.place = data, order, 0

    def element(self) -> tuple[int, bytes]:
        kind, size = struct.unpack_from(f"{self.order}II", self.data, self.place)
        if kind >> 16:  # four bytes or fewer stand in the tag itself
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
        """Class and dimensions of the matrix that starts here; its name is passed over."""
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
