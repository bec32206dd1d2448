"""How much memory there is."""

from __future__ import annotations

import os
from pathlib import Path

CONTAINER = Path("/sys/fs/cgroup")


def container_limit() -> int | None:
    """Bytes that this process's container may hold; None where there is no limit."""
    try:
        limit = (CONTAINER / "memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(limit) if limit.isdecimal() else None  # it says "max" where there is none


def total_memory() -> int:
    """Bytes of memory that the machine has, or its container where that has less."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # a system that does not say
        memory = 1 << 62
    return min(memory, container_limit() or memory)
