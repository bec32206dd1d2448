"""Gets the benchmarks: downloads that resume where they broke off, checksums, unpacking.

The transfer is our own code: pooch cannot resume, and huggingface_hub's resuming transfer is not public.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tiss import __version__
from tiss.data.benchmarks import ADE_FOLDER, AUGMENTED, make_augmented
from tiss.errors import TissError
from tiss.files import inside, make_folder, read_json, write_json

RECORD = "downloads.json"  # what was downloaded into a folder: address, bytes, SHA-256
MAX_BYTES = 16 << 30  # unpacked
MAX_FILES = 1_000_000
_CHUNK = 1 << 20
_ATTEMPTS = 5  # in a row without a byte of progress
_TIMEOUT = 60


@dataclass(frozen=True)
class Source:
    """A file to download. `checksum` is `algorithm:hexadecimal`, or None where nobody has published one."""

    file: str
    urls: tuple[str, ...]
    checksum: str | None
    max_bytes: int = 3 << 30

    def redirected(self, url: str | None, checksum: str) -> Source:
        """The file from another address or with another checksum ("none": no check), where they are given."""
        source = replace(self, urls=(url,)) if url else self
        return replace(source, checksum=parse_checksum(checksum)) if checksum else source


VOC2012 = Source(
    "VOCtrainval_11-May-2012.tar",
    (
        "https://thor.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar",
        "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar",
    ),
    "md5:6cd6e144f989b92b3379bac3b3de84fd",
)
SBD = Source(
    "benchmark.tgz",
    ("https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/semantic_contours/benchmark.tgz",),
    "md5:82b4d87ceb2ed10f6038a1cba92111cb",
)
ADE20K = Source(
    "ADEChallengeData2016.zip",
    ("http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip",),
    "sha1:219e1696abb36c8ba3a3afe7fb2f4b4606a897c7",
)

CITYSCAPES = """Cityscapes can only be downloaded with an account, which its makers give for research.

1. Register at https://www.cityscapes-dataset.com and log in.
2. Download leftImg8bit_trainvaltest.zip (11 GB, images) and gtFine_trainvaltest.zip (241 MB, labels).
3. Unpack both into one folder, so that it holds
     {root}/leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png
     {root}/gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png
4. tiss data verify cityscapes --root {root}

The test images have no public labels: tiss tests on val (500 images), as everyone does."""


def download_voc(root: Path, archive: Source = VOC2012, sbd: Source | Path = SBD, keep: bool = False) -> Path:
    """VOC 2012 with the augmented masks, in `root`/VOCdevkit/VOC2012; what is there is not repeated."""
    voc = root / "VOCdevkit" / "VOC2012"
    lists = voc / "ImageSets" / "Segmentation" / "val.txt"
    _fetch_and_unpack(archive, root, lists if (voc / "JPEGImages").is_dir() else voc / "JPEGImages", keep)
    if (voc / AUGMENTED).is_dir():
        return voc
    if isinstance(sbd, Path):
        make_augmented(voc, sbd)
        return voc
    path = fetch(sbd, root)
    with tempfile.TemporaryDirectory(prefix=".sbd-", dir=root) as temporary:
        needed = ("/train.txt", "/val.txt")
        unpack(path, Path(temporary), lambda name: "/cls/" in name or name.endswith(needed))
        make_augmented(voc, Path(temporary))
    if not keep:
        path.unlink()
    return voc


def download_ade20k(root: Path, archive: Source = ADE20K, keep: bool = False) -> Path:
    """ADE20K in `root`/ADEChallengeData2016."""
    _fetch_and_unpack(archive, root, root / ADE_FOLDER / "annotations" / "training", keep)
    return root / ADE_FOLDER


def _fetch_and_unpack(archive: Source, root: Path, wanted: Path, keep: bool) -> None:
    if wanted.exists():
        return
    path = fetch(archive, root)
    unpack(path, root)
    if not wanted.exists():
        raise TissError(f"{archive.file}: no {wanted.relative_to(root)} in it")
    if not keep:
        path.unlink()


def fetch(source: Source, folder: Path, wait: Callable[[float], None] = time.sleep) -> Path:
    """The file of `source` in `folder`: as it is if whole, else downloaded from where an earlier try ended."""
    path = make_folder(folder) / source.file
    part = path if path.exists() else folder / f"{source.file}.part"
    for url in source.urls if part != path else ():
        try:
            _fetch_from(url, part, source, wait)
            break
        except TissError:
            if url == source.urls[-1]:
                raise
    _check(part, source)
    os.replace(part, path)
    return path


def _fetch_from(url: str, part: Path, source: Source, wait: Callable[[float], None]) -> None:
    if not url.startswith(("http://", "https://")):
        raise TissError(f"{url}: only http and https addresses are possible", setting="url")
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            return _transfer(url, part, before, source.max_bytes)
        except (OSError, http.client.HTTPException) as error:
            failures = failures + 1 if not part.exists() or part.stat().st_size <= before else 1
            if failures >= _ATTEMPTS:
                reason = f"{url}: broke off {failures} times ({error})"
                raise TissError(f"{reason}; the same command resumes") from None
            wait(min(30.0, 2.0 ** (failures - 1)))


def _transfer(url: str, part: Path, start: int, max_bytes: int) -> None:
    """One request: appends to `part` from byte `start`, or starts again where the server cannot resume.

    A transfer that ends too early raises a ConnectionError and leaves what came.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    headers = {"User-Agent": f"tiss/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # we have as much as there is, or the file there is another one
            part.unlink(missing_ok=True)
        if error.code == 416 or error.code >= 500:
            raise ConnectionError(f"HTTP {error.code}") from None
        reason = f"{url}: HTTP {error.code} {error.reason}"
        raise TissError(f"{reason}; give another address", setting="url") from None
    console = Console(stderr=True)
    columns = (part.stem, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with response, Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        start = start if response.status == 206 else 0
        total = start + int(response.headers.get("Content-Length") or 0)  # 0: not told
        if total > max_bytes:
            raise TissError(f"{url}: {total:,} bytes are more than the {max_bytes:,} expected")
        if total - start > shutil.disk_usage(part.parent).free:
            raise TissError(f"{part.parent}: too little room for {total:,} bytes")
        task = bar.add_task(part.stem, total=total or None, completed=start)
        with open(part, "ab" if start else "wb") as file:
            while chunk := response.read1(_CHUNK):
                if file.tell() + len(chunk) > max_bytes:
                    raise TissError(f"{url}: more than the {max_bytes:,} bytes expected")
                file.write(chunk)
                bar.advance(task, len(chunk))
            if file.tell() < total:
                raise ConnectionError(f"{file.tell():,} of {total:,} bytes came")


def _check(path: Path, source: Source) -> None:
    """Compares with the published checksum or, where there is none, with what an earlier download recorded."""
    algorithm, _, wanted = (source.checksum or "sha256:").partition(":")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    place = path.parent / RECORD
    record = read_json(place) if place.exists() else {}
    if not isinstance(record, dict) or not all(isinstance(entry, dict) for entry in record.values()):
        raise TissError(f"{place}: not a record of downloads; remove it")
    wanted = wanted or record.get(source.file, {}).get("sha256", "")
    if wanted and found != wanted.lower():
        path.unlink()
        raise TissError(f"{path}: wrong bytes, {algorithm} is {found}, not {wanted}; removed, run it again")
    entry = {"url": source.urls[0], "bytes": path.stat().st_size, "sha256": sha256}
    write_json(place, record | {source.file: entry})


def parse_checksum(text: str) -> str | None:
    """`md5:…`, `sha1:…` or `sha256:…`; `none` for no check."""
    if text == "none":
        return None
    algorithm, _, digits = text.lower().partition(":")
    lengths = {"md5": 32, "sha1": 40, "sha256": 64}
    if len(digits) != lengths.get(algorithm) or set(digits) - set("0123456789abcdef"):
        raise TissError(f"{text}: give md5:…, sha1:… or sha256:… in full, or none", setting="checksum")
    return f"{algorithm}:{digits}"


def unpack(
    archive: Path,
    folder: Path,
    wanted: Callable[[str], bool] = lambda name: True,
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
) -> int:
    """Unpacks the `wanted` files of a tar or zip file into `folder`, all or nothing; returns their number.

    Names that lead out of the folder, links out of it and devices are refused (tarfile's data filter).
    """
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=make_folder(folder)) as temporary:
        bytes_left, count = max_bytes, 0
        try:
            for name, size, extract in _members(archive):
                if not wanted(name):
                    continue
                bytes_left, count = bytes_left - size, count + 1
                if bytes_left < 0 or count > max_files:
                    raise TissError(f"{archive}: more than {max_bytes:,} bytes or {max_files:,} files")
                inside(temporary, name)
                extract(temporary)
        except TissError:
            raise
        except Exception as error:  # the libraries raise much beside errors of their own
            raise TissError(f"{archive}: broken or unsafe archive ({error}); get it again") from error
        for path in sorted(Path(temporary).iterdir()):
            _merge(path, folder / path.name)
    return count


def _members(archive: Path) -> Iterator[tuple[str, int, Callable[[str], Any]]]:
    """Name, size and a function that extracts it into a folder, for every member that is no folder."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as bundle:
            for item in bundle.infolist():
                if not item.is_dir():
                    yield item.filename, item.file_size, partial(bundle.extract, item)
    else:
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                if not member.isdir():
                    yield member.name, member.size, partial(tar.extract, member, filter="data")


def _merge(source: Path, target: Path) -> None:
    """Moves `source` to `target`; folders that exist are filled, files replaced."""
    plain_folder = target.is_dir() and not target.is_symlink()
    if source.is_dir() and plain_folder:
        for path in source.iterdir():
            _merge(path, target / path.name)
        return
    if plain_folder or (source.is_dir() and os.path.lexists(target)):
        raise TissError(f"{target}: in the way of what the archive holds; move it away")
    os.replace(source, target)
