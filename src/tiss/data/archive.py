"""Unpacks archives from strangers: nothing lands outside the folder, no links, no more bytes than agreed."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from tiss.errors import TissError
from tiss.files import inside

MAX_BYTES = 64 << 30
MAX_FILES = 1_000_000
_CHUNK = 1 << 20


def unpack(
    archive: Path,
    folder: Path,
    wanted: Callable[[str], bool] = lambda name: True,
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
) -> int:
    """Unpacks a tar or zip file into `folder`, all or nothing; returns the number of files.

    Only plain files are taken, and of them those that `wanted` names. A name that leads out of the folder,
    a link, a device, or more bytes or files than the limits (counted as they come, not as the archive says)
    ends it with an error, and nothing is left behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".unpack-", dir=folder))
    try:
        count = _unpack_into(archive, temporary, wanted, max_bytes, max_files)
        for path in sorted(temporary.iterdir()):
            _merge(path, folder / path.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return count


def _unpack_into(
    archive: Path, folder: Path, wanted: Callable[[str], bool], max_bytes: int, max_files: int
) -> int:
    left, count = max_bytes, 0
    members = _zip_members(archive) if zipfile.is_zipfile(archive) else _tar_members(archive)
    try:
        for name, source in members:
            count += 1
            if count > max_files:
                raise TissError(f"{archive}: more than {max_files:,} files in it; not unpacked")
            path = inside(folder, name)
            if not wanted(name):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            left -= _copy(source, path, left, archive, max_bytes)
    except TissError:
        raise
    except Exception as error:  # the libraries let out much beside errors of their own
        raise TissError(f"{archive}: broken archive ({error}); remove it and fetch it again") from error
    return count


def _copy(source: IO[bytes], path: Path, left: int, archive: Path, limit: int) -> int:
    written = 0
    with open(path, "xb") as target:
        while chunk := source.read(_CHUNK):
            written += len(chunk)
            if written > left:
                raise TissError(f"{archive}: unpacks to more than {limit:,} bytes; not unpacked")
            target.write(chunk)
    return written


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            if member.isdir():
                continue
            source = tar.extractfile(member) if member.isreg() else None
            if source is None:
                raise TissError(f"{archive}: {member.name!r} is a link or a device; not unpacked")
            yield member.name, source


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.infolist():
            if member.is_dir():
                continue
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG):
                raise TissError(f"{archive}: {member.filename!r} is a link or a device; not unpacked")
            with bundle.open(member) as source:
                yield member.filename, source


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
