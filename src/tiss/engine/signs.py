"""Who a process is, and the signs of life that it gives."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from dataclasses import astuple, dataclass
from types import FrameType

from tiss.files.lock import machine_name, process_start
from tiss.files.phase import Phase

DONE = "done"  # the last beat of a process that leaves in peace
START = Phase("start", -1, None)  # of a process that has not been heard of
COMPILERS = (  # their work takes minutes, at any time; dynamo's eval_frame.py is below every compiled call, so not here
    "torch/_dynamo/convert_frame.py",
    "torch/_inductor/compile_fx.py",
    "torch/_inductor/async_compile.py",
    "triton/compiler/",
    "triton/runtime/autotuner.py",
)
MEETINGS = ("torch/distributed/", "torch/nn/parallel/distributed.py")  # code that waits for other processes
PASSED_ON = "torch/_ops.py"  # a call on its way to where it is done
MEETING_CALLS = ("_engine_run_backward", "LossWatch.check")  # gradients meet; a GPU's queue is waited for


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


@dataclass(frozen=True)
class Place:
    """Where in the code the main thread of a process is, and whether it may wait there for others."""

    text: str = "start"
    may_wait: bool = True
    compiles: bool = False

    @classmethod
    def now(cls) -> Place:
        """That of this process."""
        return cls.of(threading.main_thread())

    @classmethod
    def of(cls, thread: threading.Thread) -> Place:
        """That of a thread; compilers work in others too."""
        frames = sys._current_frames()
        compiles = any(_is_below(frame, COMPILERS) for frame in frames.values())
        frame = frames.get(thread.ident or 0)
        while frame is not None and _path(frame).endswith(PASSED_ON) and frame.f_back is not None:
            frame = frame.f_back
        if frame is None:
            return cls(compiles=compiles)
        path, function = _path(frame), frame.f_code.co_qualname
        text = f"{function} ({path.rpartition('/')[2]}:{frame.f_lineno})"
        may_wait = function in MEETING_CALLS or any(part in path for part in MEETINGS)
        return cls(text, may_wait, compiles)


def _path(frame: FrameType) -> str:
    return frame.f_code.co_filename.replace(os.sep, "/")


def _is_below(frame: FrameType | None, paths: tuple[str, ...]) -> bool:
    """Whether a call in one of these files has led to `frame`."""
    while frame is not None:
        path = _path(frame)
        if any(part in path for part in paths):
            return True
        frame = frame.f_back
    return False


@dataclass
class Sign:
    """The last sign of life of a process, and when it and the work behind it were seen to change."""

    beat: str
    since: float
    work: Phase = START
    moved: float = 0.0
    place: Place = Place()

    def update(self, beat: str, now: float) -> None:
        self.beat, self.since = beat, now
        if beat == DONE:
            self.work, self.moved = Phase("wait", -1, None), now
            return
        work, self.place = work_in(beat)
        if work != self.work:
            self.work, self.moved = work, now

    @property
    def waits(self) -> bool:
        return self.work.patience is None

    def is_overdue(self, now: float) -> bool:
        return self.work.patience is not None and now - self.moved > self.work.patience


def beat_of(number: int, work: Phase, place: Place) -> str:
    """A sign of life with the work in it: both ends are of the same version, so nothing is checked."""
    return json.dumps([number, *astuple(work), *astuple(place)])


def work_in(beat: str) -> tuple[Phase, Place]:
    _, *values = json.loads(beat)
    name, count, patience, together, turn, *place = values
    return Phase(name, count, patience, together, tuple(turn)), Place(*place)
