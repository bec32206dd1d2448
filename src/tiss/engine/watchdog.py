"""Processes that watch over each other: one that dies, hangs or fails ends the whole run with its name.

Each process beats in the store that the process group was made with. The first process watches all others, they
watch the first, so traffic grows with the number of processes and not with its square. Whoever finds something
wrong leaves a verdict in the store; all that read it stop. Ages are measured by the watcher's own clock from the
last change that it saw, so clocks of several machines need not agree.

A beat comes from a thread of its own, so it says little about the work: it carries the phase of the work along
(tiss.files.phase), and the first process names the one that all others wait for (tiss.engine.stalls).
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from torch.distributed import Store

from tiss.engine.signs import DONE, Peer, Place, Sign, beat_of
from tiss.engine.stalls import find_stall
from tiss.errors import one_line
from tiss.files.lock import process_start
from tiss.files.phase import progress

PEER_TIMEOUT = (
    25.0  # seconds without a sign of life; launchers take up to 30 more to clear up on other machines
)
FAILED, GONE = 2, 3  # exit codes: a mistake that some process reported; a process that died or hangs
STOP = 0  # in the pipe that wakes the thread; other bytes there are numbers of signals
REMEDY = "the last checkpoint is whole: the same command with --resume goes on"


class Watchdog:
    """A thread that beats for this process and looks after others, from `start` to `stop`."""

    def __init__(self, store: Store, rank: int, size: int, timeout: float | None = None) -> None:
        self.timeout = timeout or float(os.environ.get("TISS_PEER_TIMEOUT", PEER_TIMEOUT))
        self.interval = min(1.0, self.timeout / 5)
        # a connection of its own: the other one may wait for hours
        self.store: Store = store.clone()  # type: ignore[attr-defined]
        self.store.set_timeout(timedelta(seconds=self.timeout))
        self.rank, self.size = rank, size
        self.peers: dict[int, Peer] = {}
        self.signs: dict[int, Sign] = {}
        self.beats = 0
        self.last_look = time.monotonic()
        self.speaking = threading.Lock()  # one of the two threads of a process has the last word
        self.wake, self.waker = socket.socketpair()
        self.waker.setblocking(False)
        self.hears = False  # whether the launcher's signal comes through the pipe
        self.thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    # Called by the process's own thread

    def start(self) -> None:
        progress.forget()  # what an earlier run of this process took says nothing about this one
        self._set(f"who/{self.rank}", json.dumps(asdict(Peer.myself(self.rank))))
        self._set(f"beat/{self.rank}", beat_of(0, progress.now, Place.now()))
        self._hear_termination()
        self.thread.start()

    def stop(self) -> None:
        """Leaves in peace; the first process, which may keep the store, goes last."""
        self.waker.send(bytes([STOP]))
        self.thread.join()
        try:
            self._set(f"beat/{self.rank}", DONE)
            deadline = time.monotonic() + 5
            while self.rank == 0 and time.monotonic() < deadline and not self._all_done():
                time.sleep(0.02)
        except RuntimeError:  # the store went with a process that had nothing left to do
            pass
        self._forget_termination()
        self.wake.close()
        self.waker.close()

    def fail(self, message: str, code: int = FAILED, patience: float = 0.0) -> None:
        """Tells all processes that this one cannot go on; `patience` waits for an earlier cause to show itself."""
        time.sleep(patience)
        if self.rank > 0:
            time.sleep(self.interval)  # a mistake that all processes find is the first one's to report
        text = f"rank {self.rank}: {message}"
        try:
            heard = self._tell({"rank": self.rank, "text": text, "code": code, "heard": False})
        except RuntimeError:  # no store any more: nobody is left to tell
            heard = False
        if self.rank > 0 and not heard:
            self._say(text)
        self.speaking.acquire()

    def _tell(self, verdict: dict[str, Any]) -> bool:
        """Leaves a verdict about this process, and says whether the first process has passed it on."""
        if not self._claim(verdict):
            time.sleep(
                10 * self.interval
            )  # the other thread is about to end this process for an earlier reason
        elif self.rank == 0:
            time.sleep(2 * self.interval)  # the store may end with this process: let the others read it
        else:
            deadline = time.monotonic() + 3 * self.interval + 1
            while time.monotonic() < deadline and not self.store.check([key("heard")]):
                time.sleep(0.05)
        return bool(self.store.check([key("heard")]))

    # The thread

    def _watch(self) -> None:
        while True:
            ready, _, _ = select.select([self.wake], [], [], self.interval)
            signals = self.wake.recv(64) if ready else b""
            if STOP in signals:
                return
            try:
                self._look()
            except Exception as error:  # nothing may end this thread in silence: it hears the launcher
                self._store_lost(error)
            if signal.SIGTERM in signals:
                self._exit(128 + signal.SIGTERM)

    def _look(self) -> None:
        self.beats += 1
        self._set(f"beat/{self.rank}", beat_of(self.beats, progress.now, Place.now()))
        self._obey()
        now = time.monotonic()
        slept = now - self.last_look > self.timeout / 2  # this process itself was stopped or starved
        self.last_look = now
        for rank in range(1, self.size) if self.rank == 0 else (0,):
            sign = self._sign_of(rank, now)
            if slept:
                sign.since = sign.moved = now
            if sign.beat == DONE:
                continue
            peer = self.peers.get(rank)
            if peer is not None and peer.has_died and self._read(f"beat/{rank}") != DONE:
                self._obey()  # it may have said why
                self._sentence(peer, "ended without a word (often: killed for want of memory)")
            elif now - sign.since > self.timeout:
                self._sentence(peer or rank, f"has given no sign of life for {self.timeout:.0f} s", kill=True)
        if self.rank == 0:
            own = self.signs.setdefault(0, Sign("", now))
            own.update(beat_of(self.beats, progress.now, Place.now()), now)
            if slept:
                own.moved = now
            if len(self.signs) == self.size:
                self._look_at_all(now)

    def _look_at_all(self, now: float) -> None:
        """Ends a run that stands still; this process's own work counts too."""
        found = find_stall(self.signs, now)
        if found is None:
            return
        if found.rank is None:
            self._sentence(None, found.what)
        else:
            self._sentence(self.peers.get(found.rank) or Peer.myself(0), found.what, kill=found.rank != 0)

    def _sign_of(self, rank: int, now: float) -> Sign:
        beat = self._read(f"beat/{rank}")
        if rank not in self.peers and beat is not None:
            self.peers[rank] = Peer(**json.loads(self._read(f"who/{rank}") or "{}"))
        sign = self.signs.setdefault(rank, Sign("", now))
        if beat is not None and beat != sign.beat:
            sign.update(beat, now)
        return sign

    def _obey(self) -> None:
        """Stops where another process has left a verdict; the first process says it aloud."""
        text = self._read("verdict")
        if not text:
            return
        verdict: dict[str, Any] = json.loads(text)
        if verdict["rank"] == self.rank:  # this process's own thread has failed and is about to say so
            raise SystemExit  # ends this thread only
        self.speaking.acquire()
        if self.rank == 0 and not verdict["heard"]:
            self._say(verdict["text"])
            self._set("heard", "1")
        self._exit(verdict["code"])

    def _sentence(self, who: Peer | int | None, what: str, kill: bool = False) -> None:
        """Says what is wrong with whom (None: with nobody in particular) and ends the run."""
        self.speaking.acquire()
        name = "" if who is None else f"{who} " if isinstance(who, Peer) else f"rank {who} "
        if self._claim({"rank": self.rank, "text": name + what, "code": GONE, "heard": True}):
            self._say(f"{name}{what}; {REMEDY}")
        if kill and isinstance(who, Peer) and who.is_here and process_start(who.pid) == who.started:
            os.kill(who.pid, signal.SIGKILL)  # a stopped process would keep its launcher waiting
        self._exit(GONE)

    def _store_lost(self, error: Exception) -> None:
        sign = self.signs.get(0)
        if self.rank > 0 and sign is not None and sign.beat == DONE:
            raise SystemExit  # ends this thread only
        self.speaking.acquire()
        who = self.peers.get(0) if self.rank else None
        name = f"{who}, or the launcher," if who is not None else "the launcher"
        self._say(f"{name} no longer answers ({one_line(str(error), 200)}); {REMEDY}")
        self._exit(GONE)

    # The store

    def _claim(self, verdict: dict[str, Any]) -> bool:
        """Leaves `verdict` unless there is one already, and says whether it is now the one."""
        text = json.dumps(verdict)
        found = self.store.compare_set(key("verdict"), "", text)
        return bool(found.decode() == text)

    def _set(self, name: str, value: str) -> None:
        self.store.set(key(name), value)

    def _read(self, name: str) -> str | None:
        return self.store.get(key(name)).decode() if self.store.check([key(name)]) else None

    def _all_done(self) -> bool:
        return all(self._read(f"beat/{rank}") == DONE for rank in range(1, self.size))

    # The end

    def _say(self, text: str) -> None:
        print(f"tiss: {text}", file=sys.stderr, flush=True)

    def _exit(self, code: int) -> None:
        sys.stdout.flush()
        os._exit(code)

    def _hear_termination(self) -> None:
        """A launcher ends all processes when one dies; the reason is worth a line before that.

        Python runs handlers in the main thread only, which may wait in a collective for ever: the signal's
        number in the pipe wakes the watchdog instead.
        """
        main = threading.current_thread() is threading.main_thread()
        self.hears = main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if self.hears:
            signal.signal(signal.SIGTERM, lambda number, frame: None)
            signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
            # forked loader processes must neither ignore the signal nor pass it on to this one
            os.register_at_fork(after_in_child=self._forget_termination)

    def _forget_termination(self) -> None:
        if self.hears:
            self.hears = False
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def key(name: str) -> str:
    return f"tiss/{name}"
