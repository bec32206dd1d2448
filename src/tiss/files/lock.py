"""One holder at a time: a lease file with host, process and heartbeat, for run folders and cells of grids.

On the same machine the holder is checked by its process (number and start time, so a reused number does not
count as alive); from another machine its lease is stale when the heartbeat is a minute old. The file appears
by a hard link, so it is whole from the start, and a stale one is renamed away before a new one is linked: of
many takers one wins.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from tiss.errors import TissError
from tiss.files.atomic import TEMPORARY, explained, hidden
from tiss.files.reading import read_json

try:
    import fcntl
except ImportError:  # no such locks on this system: takeovers are then guarded by the rename alone
    fcntl = None  # type: ignore[assignment]

STALE_AFTER = 60.0
BEAT_EVERY = 10.0


@dataclass(frozen=True)
class _Holder:
    """What a lease file says: who holds it."""

    host: str
    machine: str  # this boot and process namespace: only there do process numbers mean anything
    pid: int
    started: str
    token: str


class Lease:
    """Exclusive use of what `path` stands for, from `acquire` (or `with`) to `release`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Lease(Path(folder, "lease.json")) as lease:
    ...     Lease(lease.path).try_acquire()
    False
    """

    def __init__(
        self, path: str | os.PathLike[str], stale_after: float = STALE_AFTER, beat_every: float = BEAT_EVERY
    ) -> None:
        self.path = Path(path)
        self.lost = False  # True once the heartbeat finds the lease gone or in other hands
        self._stale_after = stale_after
        self._beat_every = beat_every
        self._mine: _Holder | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def acquire(self) -> None:
        """Takes the lease; a TissError names the holder where there is one."""
        if not self.try_acquire():
            raise TissError(
                f"{self.path.parent} is in use by {self.holder()}; wait for it or choose another folder"
            )

    def try_acquire(self) -> bool:
        """Takes the lease if nobody holds it, and says whether it did."""
        mine = _Holder(
            socket.gethostname(),
            machine_name(),
            os.getpid(),
            process_start(os.getpid()),
            secrets.token_hex(8),
        )
        claim = hidden(self.path, f".{mine.token}{TEMPORARY}")
        with explained(self.path):
            try:
                with open(claim, "x") as file:
                    file.write(json.dumps(asdict(mine)) + "\n")
                    file.flush()
                    now = os.fstat(
                        file.fileno()
                    ).st_mtime  # the file system's clock, as in others' heartbeats
                won = _link(claim, self.path) or (self._clear_stale(now) and _link(claim, self.path))
            finally:
                claim.unlink(missing_ok=True)
        if won:
            self._mine, self.lost = mine, False
            self._stop.clear()
            self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
            self._thread.start()
        return won

    def release(self) -> None:
        """Gives the lease back. In a forked child, which never held it, nothing happens."""
        if self._mine is None or self._mine.pid != os.getpid():
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._is_mine():
            with suppress(OSError):
                self.path.unlink()
        self._mine = self._thread = None

    def check(self) -> None:
        """Raises a TissError if the lease was lost: removed by hand, or taken while this process slept."""
        if self._mine is not None and self._mine.pid == os.getpid() and not self._is_mine():
            self.lost = True
        if self.lost:
            raise TissError(
                f"{self.path}: this process lost its lease; another one may be writing, so it stops"
            )

    def holder(self) -> str:
        """Who holds the lease, in words."""
        holder = _read(self.path)
        if holder is None:
            return "a process that has just come or gone"
        try:
            age = f" (last sign of life {max(0, round(time.time() - self.path.stat().st_mtime))} s ago)"
        except OSError:
            age = ""
        return f"process {holder.pid} on {holder.host}{age}"

    def _is_mine(self) -> bool:
        holder = _read(self.path)
        return holder is not None and self._mine is not None and holder.token == self._mine.token

    def _beat(self) -> None:
        while not self._stop.wait(self._beat_every):
            if not self._is_mine():
                self.lost = True
                return
            with suppress(OSError):  # a file system that is away for a moment is no reason to die here
                os.utime(self.path)

    def _clear_stale(self, now: float) -> bool:
        """Moves a stale lease away, and says whether the place is free."""
        with _guard(self.path):
            holder = _read(self.path)
            if not self._is_stale(holder, now):
                return not self.path.exists()
            grave = hidden(self.path, f".{secrets.token_hex(8)}{TEMPORARY}")
            try:
                os.rename(self.path, grave)
            except FileNotFoundError:
                return True
            moved = _read(grave)
            if moved != holder:  # somebody took over between the look and the rename: give it back
                _link(grave, self.path)
            grave.unlink(missing_ok=True)
            return moved == holder

    def _is_stale(self, holder: _Holder | None, now: float) -> bool:
        if holder is not None and holder.machine == machine_name():
            return process_start(holder.pid) != holder.started
        try:
            return now - self.path.stat().st_mtime > self._stale_after
        except FileNotFoundError:
            return False


def _link(claim: Path, place: Path) -> bool:
    """Puts `claim` in place unless something is there already."""
    try:
        os.link(claim, place)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links: create exclusively, then fill
        try:
            with open(place, "x") as file:
                file.write(claim.read_text())
        except FileExistsError:
            return False
    return True


@contextmanager
def _guard(path: Path) -> Iterator[None]:
    """Lets one process of this host at a time decide about a stale lease; the kernel frees it at a death."""
    if fcntl is None:
        yield
        return
    place = hidden(path, f".guard{TEMPORARY}")
    while True:
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):  # a file system without such locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            current = os.stat(place).st_ino == os.fstat(descriptor).st_ino
        except FileNotFoundError:
            current = False
        if current:  # else the one before us has removed the file that we locked
            break
        os.close(descriptor)
    try:
        yield
    finally:
        place.unlink(missing_ok=True)
        os.close(descriptor)


def _read(path: Path) -> _Holder | None:
    """The holder that a lease file names; None where there is none, or none that can be read."""
    try:
        holder = _Holder(**read_json(path, max_bytes=4096))
    except (TissError, TypeError):
        return None
    words = (holder.host, holder.machine, holder.started, holder.token)
    sound = type(holder.pid) is int and all(isinstance(word, str) and word.isprintable() for word in words)
    return holder if sound else None


def machine_name() -> str:
    """This boot and process namespace: within it, process numbers mean something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def process_start(pid: int) -> str:
    """When process `pid` started, in the kernel's words; "" where it does not run (any more)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # a zombie is dead, only not yet mourned
    except FileNotFoundError:
        if os.path.exists("/proc/self/stat"):
            return ""
    except OSError:
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "runs"
