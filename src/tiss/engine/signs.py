"""Who a process is, and the signs of life that it gives."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass

from tiss.files.phase import Phase
from tiss.lock import machine_name, process_start

DONE = "done"  # the last beat of a process that leaves in peace
START = Phase("start", -1, None)  # of a process that has not been heard of


@dataclass(frozen=True)
class Peer:
    """Where a process lives."""

    rank: int
    host: str
    machine: str
    pid: int
    started: str

    @classmethod
    def myself(cls, rank: int) -> Peer:
        pid = os.getpid()
        return cls(rank, socket.gethostname(), machine_name(), pid, process_start(pid))

    @property
    def is_here(self) -> bool:
        return self.machine == machine_name()

    @property
    def has_died(self) -> bool:
        """Known for sure on this machine only."""
        return self.is_here and process_start(self.pid) != self.started

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"


@dataclass
class Sign:
    """The last sign of life of a process, and when it and the work behind it were seen to change."""

    beat: str
    since: float
    work: Phase = START
    moved: float = 0.0

    def update(self, beat: str, now: float) -> None:
        self.beat, self.since = beat, now
        if beat == DONE:
            self.work, self.moved = Phase("wait", -1, None), now
            return
        work = phase_in(beat)
        if work != self.work:
            self.work, self.moved = work, now

    @property
    def waits(self) -> bool:
        return self.work.patience is None

    def is_overdue(self, now: float) -> bool:
        return self.work.patience is not None and now - self.moved > self.work.patience


def beat_of(number: int, work: Phase) -> str:
    """A sign of life with the work in it: both ends are of the same version, so nothing is checked."""
    return json.dumps([number, work.name, work.count, work.patience])


def phase_in(beat: str) -> Phase:
    _, name, count, patience = json.loads(beat)
    return Phase(name, count, patience)
