"""Where the benchmarks' files come from, and how they become a data set that the readers know."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from tiss.data.archive import unpack
from tiss.data.download import Source, fetch
from tiss.data.sbd import make_augmented
from tiss.data.voc import AUGMENTED
from tiss.errors import TissError

_GIGABYTE = 1 << 30
_UNPACKED = 16 * _GIGABYTE

VOC2012 = Source(
    "VOCtrainval_11-May-2012.tar",
    (
        "https://thor.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar",
        "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar",
    ),
    "md5:6cd6e144f989b92b3379bac3b3de84fd",
    3 * _GIGABYTE,
)
SBD = Source(
    "benchmark.tgz",
    ("https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/semantic_contours/benchmark.tgz",),
    "md5:82b4d87ceb2ed10f6038a1cba92111cb",
    3 * _GIGABYTE,
)
ADE20K = Source(
    "ADEChallengeData2016.zip",
    ("http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip",),
    "sha1:219e1696abb36c8ba3a3afe7fb2f4b4606a897c7",
    3 * _GIGABYTE,
)

CITYSCAPES = """Cityscapes may be fetched only with an account, which its makers give for research.

1. Register at https://www.cityscapes-dataset.com and log in.
2. Fetch leftImg8bit_trainvaltest.zip (11 GB, pictures) and gtFine_trainvaltest.zip (241 MB, labels).
3. Unpack both into one folder, so that it holds
     {root}/leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png
     {root}/gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png
4. tiss data verify cityscapes --root {root}

The test pictures have no public labels: tiss tests on val (500 pictures), as everyone does."""


def download_voc(root: Path, archive: Source = VOC2012, sbd: Source | Path = SBD, keep: bool = False) -> Path:
    """VOC 2012 with the augmented masks, in `root`/VOCdevkit/VOC2012; what is done is not repeated."""
    voc = root / "VOCdevkit" / "VOC2012"
    if not (voc / "JPEGImages").is_dir():
        _fetch_and_unpack(archive, root, keep)
        if not (voc / "JPEGImages").is_dir():
            raise TissError(f"{archive.file}: no VOCdevkit/VOC2012/JPEGImages in it")
    if (voc / AUGMENTED).is_dir():
        return voc
    if isinstance(sbd, Path):
        make_augmented(voc, sbd)
        return voc
    path = fetch(sbd, root)
    with tempfile.TemporaryDirectory(prefix=".sbd-", dir=root) as temporary:
        unpack(path, Path(temporary), _is_mask_or_list, _UNPACKED)
        make_augmented(voc, Path(temporary))
    if not keep:
        path.unlink()
    return voc


def _is_mask_or_list(name: str) -> bool:
    return "/cls/" in name or name.endswith(("dataset/train.txt", "dataset/val.txt"))


def download_ade20k(root: Path, archive: Source = ADE20K, keep: bool = False) -> Path:
    """ADE20K in `root`/ADEChallengeData2016."""
    place = root / "ADEChallengeData2016"
    if not (place / "annotations" / "training").is_dir():
        _fetch_and_unpack(archive, root, keep)
        if not (place / "annotations" / "training").is_dir():
            raise TissError(f"{archive.file}: no ADEChallengeData2016/annotations/training in it")
    return place


def _fetch_and_unpack(archive: Source, root: Path, keep: bool) -> None:
    path = fetch(archive, root)
    unpack(path, root, max_bytes=_UNPACKED)
    if not keep:
        path.unlink()


def redirected(source: Source, url: str | None, checksum: str | None, given: bool) -> Source:
    """`source` from another address, with another checksum where one is given (None: no check)."""
    if url:
        source = replace(source, urls=(url,))
    return replace(source, checksum=checksum) if given else source
