"""How many threads data work may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Keeps torch's operations on the calling thread.

    Data work is many short operations: dealing each out to all cores costs more than it brings, and on a busy
    machine twenty times as much, since every operation then waits for the slowest core.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def cores() -> int:
    """Processors that this process may use, shared out among the ranks on this machine."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, mine // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
