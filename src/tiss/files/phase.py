"""What a process is doing: for tests that kill it there, and for other processes that wait for it.

The watchdog of a run of several processes sends this along with its sign of life. A process that waits for others
is never at fault. One that does something else is expected to be done with it in time: soon, where it is one of many
alike, and before the others lose patience anyway, where it is not. Within an update a process computes or waits, and
seen from outside that is the same: so an update is late only when it is late for all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

STALL_TIMEOUT = 45.0  # seconds that one of many like things may take, at the least
CHECKPOINT_TIMEOUT = 300.0  # the same for checkpoints: a busy disk can keep a file's sync waiting for long
PATIENCE = 1500.0  # seconds for all other things; collectives give up after 1800 and name nobody
TIMES = 10  # so many times as long as the longest before may it take
LEARNT = 5  # so often must it have been done before one knows how long it takes
WAITING = ("wait", "train")  # where a process may be for as long as another one is late


@dataclass(frozen=True)
class Phase:
    """What is being done, the number of things done before it, and how long it may take (None: as it likes).

    `together` is how long it may take where all processes are at it: known of an update that is one of many.
    `turn` is the step and the update that this process has come to.
    """

    name: str
    count: int
    patience: float | None
    together: float | None = None
    turn: tuple[int, int] = (-1, -1)


class Progress:
    """Follows the phases of this process; read by another thread, so `now` is replaced in one go."""

    def __init__(self) -> None:
        self.now = Phase("start", 0, PATIENCE)
        self.since = time.monotonic()
        self.routine: str | None = None
        self.longest: dict[str, float] = {}
        self.times: dict[str, int] = {}

    def forget(self) -> None:
        """How long things took, at the start of another run."""
        self.routine = None
        self.longest.clear()
        self.times.clear()
        self.now = Phase("start", self.now.count + 1, PATIENCE)

    def enter(self, name: str, routine: str | None = None, turn: tuple[int, int] | None = None) -> None:
        """Begins `name`; `routine` says of which kind it is, where there are many alike."""
        moment = time.monotonic()
        if self.routine:
            self.longest[self.routine] = max(self.longest.get(self.routine, 0.0), moment - self.since)
            self.times[self.routine] = self.times.get(self.routine, 0) + 1
        self.since, self.routine = moment, routine
        known, count, turn = self._known(name, routine), self.now.count + 1, turn or self.now.turn
        if name in WAITING:
            self.now = Phase(name, count, None, known, turn)
        else:
            self.now = Phase(name, count, PATIENCE if known is None else known, None, turn)

    def _known(self, name: str, routine: str | None) -> float | None:
        """Seconds that it may take, where it was done often enough to know."""
        if routine is None or self.times.get(routine, 0) < LEARNT:
            return None
        least = float(os.environ.get("TISS_STALL_TIMEOUT", STALL_TIMEOUT))
        if name == "checkpoint":
            least = max(least, CHECKPOINT_TIMEOUT)
        return max(least, TIMES * self.longest[routine])


progress = Progress()


def mark(phase: str, routine: str | None = None, turn: tuple[int, int] | None = None) -> None:
    """Says what this process does from here on, also in the file `$TISS_PHASE_FILE`, if set, for tests."""
    progress.enter(phase, routine, turn)
    path = os.environ.get("TISS_PHASE_FILE")
    if path:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(descriptor, f"{phase}\n".encode())
        finally:
            os.close(descriptor)


@contextmanager
def doing(name: str) -> Iterator[None]:
    """Something short between two marks, such as `wait` for other processes.

    An update goes on afterwards as one of many. Other work does not: how long its second half takes is not known.
    """
    before = progress.now.name
    routine = progress.routine if before == "train" else None
    progress.enter(name)
    try:
        yield
    finally:
        progress.enter(before, routine)
