"""Writing that survives a kill or a power cut at any moment.

A file is written beside its place under a hidden name, synced, renamed, and the folder is synced: a reader
sees the old file or the new one, never a part. A folder is built the same way; replacing one takes two
renames, and `recover` finishes or undoes what a crash left between them.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tiss.errors import SpaceError, TissError

TEMPORARY = ".tiss-tmp"  # being written: worthless after a crash
COMPLETE = ".tiss-new"  # a folder that is whole and synced, about to take its place
REPLACED = ".tiss-old"  # the folder that it replaces, until it has taken its place

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextmanager
def explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns what the system says about writing `path` into one line with a remedy."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in FULL:
            raise SpaceError(
                f"{reason}: {path}; free some space and start it again (a run: with --resume)"
            ) from error
        if error.errno in _FORBIDDEN:
            raise TissError(f"cannot write {path}: {reason}; allow it or choose another folder") from error
        raise TissError(f"cannot write {path}: {reason}") from error


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder `path`, made with its parents where it is not there."""
    with explained(path):
        os.makedirs(path, exist_ok=True)
    return Path(path)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes `data` to `path`, whole or not at all."""
    write_chunks(path, [data])


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes `text` in UTF-8, whole or not at all."""
    write_bytes(path, text.encode())


def write_json(path: str | os.PathLike[str], value: Any, indent: int | None = 2) -> None:
    """Writes `value` as JSON in its own key order, floats to the last digit; NaN and infinity are refused."""
    try:
        text = json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)
        data = text.encode()
    except ValueError as error:
        raise TissError(f"{path}: not written, since JSON cannot hold it: {error}") from error
    write_bytes(path, data + b"\n")


def write_chunks(path: str | os.PathLike[str], chunks: Iterable[bytes | memoryview]) -> None:
    """Writes the chunks one after another to `path`, whole or not at all."""
    path = Path(path)
    temporary = hidden(path, "." + secrets.token_hex(4) + TEMPORARY)
    with explained(path):
        try:
            with open(temporary, "xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def append_line(path: str | os.PathLike[str], text: str) -> int:
    """Adds one line in a single write and returns the file's new size; a write that fails adds nothing."""
    data = text.rstrip("\n").encode() + b"\n"
    with explained(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            before = os.fstat(descriptor).st_size
            try:
                written = os.write(descriptor, data)
                while written < len(data):  # a full disk takes a part first and fails on the rest
                    written += os.write(descriptor, data[written:])
            except OSError:
                os.ftruncate(descriptor, before)
                raise
            return before + len(data)
        finally:
            os.close(descriptor)


def truncate_to(path: str | os.PathLike[str], size: int) -> None:
    """Cuts `path` back to `size` bytes; a file that is missing or already shorter stays as it is."""
    with explained(path):
        if os.path.exists(path) and os.path.getsize(path) > size:
            os.truncate(path, size)
            sync_file(path)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Makes what was written to `path` durable."""
    with explained(path), open(path, "rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes renames within `folder` durable, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def hidden(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}{ending}")


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a temporary folder that becomes `path` when the block ends well, and vanishes when it does not.

    What a crash left of an earlier replacement of `path` is settled first.
    """
    path = Path(path)
    temporary = hidden(path, "." + secrets.token_hex(4) + TEMPORARY)
    with explained(path):
        _settle(path)
        temporary.mkdir()
    try:
        yield temporary
        with explained(path):
            _sync_tree(temporary)
            _put_in_place(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):
            _settle(path)
        raise


def _sync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), "rb+") as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))


def _put_in_place(temporary: Path, path: Path) -> None:
    """The two renames. Every state between them has one meaning to `recover`."""
    new, old = hidden(path, COMPLETE), hidden(path, REPLACED)
    if not path.exists():
        os.rename(temporary, path)
        sync_folder(path.parent)
        return
    os.rename(temporary, new)
    os.rename(path, old)
    sync_folder(path.parent)
    os.rename(new, path)
    sync_folder(path.parent)
    _remove(old)


def _settle(path: Path) -> None:
    """Ends a replacement of `path` that was cut off; the new folder wins only where the old one is away."""
    for entry in (hidden(path, COMPLETE), hidden(path, REPLACED)):
        if path.exists():
            _remove(entry)
        elif entry.exists():
            os.rename(entry, path)
            sync_folder(path.parent)


def recover(folder: str | os.PathLike[str]) -> None:
    """Settles what a crash left in `folder`: finishes half-done replacements and removes strays.

    Only for who holds the folder's lease: it cannot tell a stray from a file that is just being written.
    """
    folder = Path(folder)
    with explained(folder):
        for ending in (COMPLETE, REPLACED):
            for entry in sorted(folder.glob(f".*{ending}")):
                _settle(entry.with_name(entry.name[1 : -len(ending)]))
    clean_strays(folder)


def clean_strays(folder: str | os.PathLike[str]) -> None:
    """Removes temporary files and folders that a killed process left in `folder` or below it."""
    with explained(folder):
        for parent, folders, names in os.walk(folder):
            for name in [*folders, *names]:
                if name.startswith(".") and name.endswith(TEMPORARY):
                    _remove(Path(parent, name))
            folders[:] = [name for name in folders if not name.endswith(TEMPORARY)]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
