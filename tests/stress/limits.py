"""Runs a function in a process with little memory and little time: what hostile files must not need more of."""

import multiprocessing
import resource
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tiss.errors import TissError


def limited(function: Callable[[], Any], seconds: int = 20, memory: int = 512 << 20) -> tuple[str, Any]:
    """How the function ended ("returned", "refused", "raised", "hangs") and with what; `memory` comes on top."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_limited, args=(function, seconds, memory, theirs))
    process.start()
    theirs.close()
    try:
        answer = ours.recv() if ours.poll(seconds + 20) else ("hangs", None)
    except EOFError:
        answer = ("died", "the process ended without an answer, by its alarm clock or a signal")
    process.join(5)
    process.kill()
    return answer


def _limited(function: Callable[[], Any], seconds: int, memory: int, answer: Connection) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.alarm(seconds)  # its default action ends the process
    try:
        answer.send(("returned", function()))
    except TissError as error:
        answer.send(("refused", str(error)))
    except BaseException:
        answer.send(("raised", traceback.format_exc()))


def refusal(function: Callable[[], object]) -> str:
    """The message of the TissError that `function` ends in; anything else fails the test."""
    kind, message = limited(lambda: repr(function())[:200])
    assert kind == "refused", f"{kind}: {message}"
    assert message and "\n" not in message
    return str(message)
