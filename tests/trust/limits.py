"""Runs a function in a process with little memory and little time: what a bomb must not need more of."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from tiss.errors import TissError

MEMORY = 512 << 20  # on top of what the process has already
SECONDS = 20


def refusal(function: Callable[[], object]) -> str:
    """The message of the TissError that `function` ends in; anything else fails the test."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_limited, args=(function, theirs))
    process.start()
    theirs.close()
    kind, message = ours.recv() if ours.poll(SECONDS + 20) else ("hang", "no answer")
    process.join(5)
    assert kind == "refused", f"{kind}: {message}"
    assert message
    assert "\n" not in message
    return str(message)


def _limited(function: Callable[[], object], answer: Connection) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.alarm(SECONDS)  # its default action ends the process
    try:
        answer.send(("returned", repr(function())[:200]))
    except TissError as error:
        answer.send(("refused", str(error)))
    except BaseException:
        answer.send(("other exception", traceback.format_exc()))
