"""Writing that survives a kill or a power cut at any moment, and a lock for its place.

A file is written under a hidden name beside its place, synced and renamed: a reader sees the old file or the
new one. A folder is built the same way. Replacing a folder takes two renames; `recover` undoes the first one
where a crash came between them.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from tiss.errors import SpaceError, TissError

TEMPORARY = ".tiss-tmp"  # being written: worthless after a crash
REPLACED = ".tiss-old"  # a folder that is being replaced, until the new one has taken its place

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}

PathLike = str | os.PathLike[str]


@contextmanager
def explained(path: PathLike) -> Iterator[None]:
    """Turns an OSError about `path` into one line with a remedy."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise TissError(f"{path}: no such file or folder") from error
    except OSError as error:
        reason = f"{path}: {error.strerror or error}"
        if error.errno in _FULL:
            raise SpaceError(f"{reason}; free some space, then resume") from error
        if error.errno in _FORBIDDEN:
            reason += "; allow it or choose another place"
        raise TissError(reason) from error


def make_folder(path: PathLike) -> Path:
    """Creates the folder `path` with its parents, unless it exists."""
    with explained(path):
        os.makedirs(path, exist_ok=True)
    return Path(path)


@contextmanager
def replacing(path: PathLike, durable: bool = True) -> Iterator[Path]:
    """Gives a hidden name; the file or folder that the block makes there becomes `path`, whole or not at all."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    old = path.with_name(f".{path.name}{REPLACED}")
    with explained(path):
        _settle(old, path)
        try:
            yield temporary
            for written in (temporary, *temporary.rglob("*")) if durable else ():
                sync(written)
            if path.is_dir():
                os.rename(path, old)
            os.replace(temporary, path)
            sync(path.parent)
            _settle(old, path)
        except BaseException:
            with suppress(OSError):
                _remove(temporary)
                _settle(old, path)
            raise


@contextmanager
def atomic_folder(path: PathLike, durable: bool = True) -> Iterator[Path]:
    """Gives a temporary folder that becomes `path` when the block ends well, and is removed when it does not.

    `durable`: it also survives a power cut; for many thousands of files that takes minutes.
    """
    with replacing(path, durable) as temporary:
        temporary.mkdir()
        yield temporary


def _settle(old: Path, path: Path) -> None:
    """Ends a replacement of `path`: the old folder goes, or comes back where no new one took its place."""
    if path.exists():
        _remove(old)
    elif old.exists():
        os.rename(old, path)
        sync(path.parent)


def write_bytes(path: PathLike, data: bytes) -> None:
    """Writes `data` to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: PathLike, text: str) -> None:
    """Writes `text` in UTF-8, whole or not at all."""
    write_bytes(path, text.encode())


def write_json(path: PathLike, value: Any, indent: int | None = 2) -> None:
    """Writes `value` as JSON in its own key order, floats to the last digit; NaN and infinity are refused."""
    try:
        data = json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False).encode()
    except ValueError as error:
        raise TissError(f"{path}: not written, since JSON cannot hold it: {error}") from error
    write_bytes(path, data + b"\n")


def append_line(path: PathLike, text: str) -> int:
    """Adds one line and returns the file's new size; a write that fails adds nothing."""
    data = text.rstrip("\n").encode() + b"\n"
    with explained(path), open(path, "ab", buffering=0) as file:
        before, written = os.fstat(file.fileno()).st_size, 0
        try:
            while written < len(data):  # a full disk takes a part first and fails on the rest
                written += file.write(data[written:])
        except OSError:
            file.truncate(before)
            raise
        return before + len(data)


def truncate_to(path: PathLike, size: int) -> None:
    """Cuts `path` back to `size` bytes; a file that is missing or already shorter stays as it is."""
    with explained(path):
        if os.path.exists(path) and os.path.getsize(path) > size:
            os.truncate(path, size)
            sync(path)


def sync(path: PathLike) -> None:
    """Makes what was written to a file, or the renames in a folder, durable."""
    if os.path.isdir(path) and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def recover(folder: PathLike) -> None:
    """Undoes half-done replacements in `folder` and removes temporary files that a killed process left below it.

    Only for the holder of the folder's lock: it cannot tell a stray from a file that is just being written.
    """
    with explained(folder):
        for old in sorted(Path(folder).glob(f".*{REPLACED}")):
            _settle(old, old.with_name(old.name[1 : -len(REPLACED)]))
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


def reserve(folder: PathLike, size: int) -> IO[bytes]:
    """Takes `size` bytes of the disk under `folder` until the result is closed; a disk with less room is refused now.

    It is a file without a name, so a killed process leaves nothing. A system that cannot reserve room reserves none.
    """
    with explained(f"{folder} (about {size / 1e6:.1f} MB are needed)"):
        held = tempfile.TemporaryFile(dir=folder, prefix=".room.", suffix=TEMPORARY)  # noqa: SIM115 - the caller's
        try:
            os.posix_fallocate(held.fileno(), 0, size)
        except (AttributeError, OSError) as error:
            if getattr(error, "errno", None) in _FULL:
                held.close()
                raise
        return held


def existing(path: Path) -> Path:
    """The nearest existing folder above `path`: `path` will lie on its disk."""
    return next(folder for folder in path.resolve().parents if folder.exists())


class Lock:
    """Exclusive use of what `path` stands for, in a `with` block: a lock of the operating system.

    The system frees it when its holder ends, however it ends. The lock file stays, names its holder, and is empty
    while free. Where another process holds it, the `with` block raises a TissError that names that process.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Lock(Path(folder, "lock")) as lock:
    ...     Lock(lock.path).try_acquire()
    False
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self._lock = FileLock(path, thread_local=False)

    def __enter__(self) -> Lock:
        holder = ""
        with suppress(OSError):
            holder = self.path.read_text(encoding="utf-8", errors="replace")[:200]
        if not self.try_acquire():
            holder = holder or "another process"
            raise TissError(f"{self.path.parent} is in use by {holder}; wait for it or choose another folder")
        return self

    def __exit__(self, *problem: object) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Takes the lock if nobody holds it, and says whether it did."""
        with explained(self.path):
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                return False
        self._say(f"process {os.getpid()} on {socket.gethostname()}")
        return True

    def release(self) -> None:
        """Gives the lock back."""
        if self._lock.is_locked:
            self._say("")
            self._lock.release()

    def _say(self, holder: str) -> None:
        with suppress(OSError):  # some systems lock the file's contents as well
            self.path.write_text(holder, encoding="utf-8")
