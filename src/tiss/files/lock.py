"""One holder at a time, for run folders and cells of grids: an operating system lock, through filelock.

The system frees the lock when its holder ends, however it ends. The lock file stays and is empty while free.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from tiss.errors import TissError
from tiss.files.atomic import PathLike, explained


class Lock:
    """Exclusive use of what `path` stands for, from `acquire` (or `with`) to `release`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Lock(Path(folder, "lock")) as lock:
    ...     Lock(lock.path).try_acquire()
    False
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self._lock = FileLock(path, thread_local=False)

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *problem: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Takes the lock; where another process has it, a TissError names that process."""
        holder = ""
        with suppress(OSError):
            holder = self.path.read_text(encoding="utf-8", errors="replace")[:200]
        if not self.try_acquire():
            holder = holder or "another process"
            raise TissError(f"{self.path.parent} is in use by {holder}; wait for it or choose another folder")

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
