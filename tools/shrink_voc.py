"""Pascal VOC with the shorter side of every picture brought to one length: what our tables were made from.

    python -m tools.shrink_voc VOCdevkit voc --side 256

Reads VOC2012 as `tiss data download voc` lays it out (VOCdevkit, the folder that holds it, or VOC2012 itself) and
writes OUT/VOCdevkit/VOC2012 with every picture that has a mask, its masks, and the lists. Pictures are resampled with
a Lanczos filter and saved as JPEG of quality 95, masks take the nearest pixel; a class of which that would leave
nothing keeps one pixel, so that every step's list of images stays the published one. Stopped at any moment, the same
command goes on: a file that is there is whole, and is not made again.
"""

import argparse
import io
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from PIL import Image

from tiss.data.benchmarks import VOC
from tiss.engine.progress import Reporter, TerminalReporter
from tiss.errors import TissError
from tiss.files import make_folder, read_bytes, read_json, recover, write_bytes, write_json

MASKS = ("SegmentationClassAug", "SegmentationClass")
LISTS = ("*.txt", "Segmentation*/*.txt")  # under ImageSets
NOTE = "shrunk.json"  # how a folder was made: one of another side is not gone on with
QUALITY = 95
LIST_BYTES = 2**24


@dataclass(frozen=True)
class Job:
    """One picture with its masks."""

    picture: Path
    masks: tuple[Path, ...]
    source: Path  # VOC2012
    out: Path
    side: int


def shrink(job: Job) -> bool:
    """Writes what is not there yet of one picture and its masks; returns whether there was anything to do."""
    todo = [path for path in (job.picture, *job.masks) if not placed(job, path).exists()]
    if not todo:
        return False
    size = load(job.picture).size
    for path in todo:
        image = load(path)
        if image.size != size:
            raise TissError(
                f"{path}: {image.size} pixels, its picture has {size}: tiss data verify voc names such files"
            )
        small = target_size(size, job.side)
        data = picture_bytes(image, small) if path is job.picture else mask_bytes(image, small)
        write_bytes(placed(job, path), data)
    return True


def placed(job: Job, path: Path) -> Path:
    return job.out / path.relative_to(job.source)


def load(path: Path) -> Image.Image:
    try:
        image = Image.open(path)
        image.load()
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise TissError(f"{path}: cannot be read: tiss data verify voc names such files") from error
    return image


def target_size(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Width and height with the shorter of them at `side`.

    >>> target_size((500, 375), 256)
    (341, 256)
    """
    short = min(size)
    return round(size[0] * side / short), round(size[1] * side / short)


def picture_bytes(image: Image.Image, size: tuple[int, int]) -> bytes:
    data = io.BytesIO()
    small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    small.save(data, "JPEG", quality=QUALITY)
    return data.getvalue()


def mask_bytes(image: Image.Image, size: tuple[int, int]) -> bytes:
    """The mask by nearest pixels; what they would lose of a class keeps one, near where it was. A palette stays."""
    if image.mode not in ("L", "P"):
        raise TissError(f"{getattr(image, 'filename', 'mask')}: VOC's masks hold one number a pixel")
    before, after = np.asarray(image), np.array(image.resize(size, Image.Resampling.NEAREST))
    for label in np.setdiff1d(before, after):
        place = np.argwhere(before == label)[0] * after.shape // before.shape
        values, counts = np.unique(after, return_counts=True)
        spare = np.argwhere(np.isin(after, values[counts > 1]))  # no class may lose its last pixel to another
        if len(spare):
            after[tuple(spare[np.abs(spare - place).sum(1).argmin()])] = label
    small = Image.fromarray(after)
    if palette := image.getpalette():
        small.putpalette(palette)
    data = io.BytesIO()
    small.save(data, "PNG", optimize=True)
    return data.getvalue()


def jobs_of(source: Path, out: Path, side: int) -> Iterator[Job]:
    """Every picture that has a mask, by name."""
    masks: dict[str, list[Path]] = {}
    for folder in MASKS:
        for path in (source / folder).glob("*.png"):
            masks.setdefault(path.stem, []).append(path)
    for name in sorted(masks):
        yield Job(source / "JPEGImages" / f"{name}.jpg", tuple(sorted(masks[name])), source, out, side)


def shrink_all(folder: Path, out: Path, side: int, workers: int | None, reporter: Reporter) -> int:
    """The whole data set; returns how many pictures it has."""
    source, target = VOC(str(folder)).root_path(), out / "VOCdevkit" / "VOC2012"
    if target.resolve() == source.resolve():
        raise TissError(f"{out}: holds the pictures that are to be read; give another folder")
    prepare(source, target, side)
    jobs = list(jobs_of(source, target, side))
    if not jobs:
        raise TissError(f"{source}: no masks in {' or '.join(MASKS)}; tiss data download voc makes them")
    # The bar may have a thread of its own, and a process with threads is not to be forked.
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    with reporter.bar("pictures", len(jobs)) as bar, pool:
        for _ in pool.map(shrink, jobs, chunksize=16):
            bar.advance()
    return len(jobs)


def prepare(source: Path, target: Path, side: int) -> None:
    """Folders, lists, and the note of how they were made."""
    note = target / NOTE
    if note.exists() and read_json(note) != {"side": side}:
        raise TissError(f"{target}: made with another --side ({note}); give another folder, or remove it")
    make_folder(target)
    recover(target)
    for name in ("JPEGImages", *(name for name in MASKS if (source / name).is_dir())):
        make_folder(target / name)
    write_json(note, {"side": side})
    for path in (path for pattern in LISTS for path in (source / "ImageSets").glob(pattern)):
        make_folder((target / path.relative_to(source)).parent)
        write_bytes(target / path.relative_to(source), read_bytes(path, LIST_BYTES))


def main(arguments: list[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.shrink_voc",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="VOC2012, VOCdevkit, or the folder that holds it")
    parser.add_argument("out", type=Path, help="new folder")
    parser.add_argument("--side", type=int, default=256, help="shorter side in pixels (256)")
    parser.add_argument("--workers", type=int, help="processes (as many as there are cores)")
    options = parser.parse_args(arguments)
    reporter = TerminalReporter()
    try:
        if options.side < 1:
            raise TissError(f"--side {options.side}: give a whole number from 1 on")
        count = shrink_all(options.folder, options.out, options.side, options.workers, reporter)
    except TissError as error:
        print(f"tools.shrink_voc: {error}", file=sys.stderr)
        return 2
    print(f"{count} pictures in {options.out}; tiss data verify voc --root {options.out} checks them")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
