"""What a person sees during long work: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Bar(Protocol):
    """The progress of one long task."""

    def advance(self, count: int = 1, note: str = "") -> None: ...


class Reporter:
    """Prints nothing: for libraries and processes other than the first."""

    def say(self, text: str) -> None:
        """One line for the user."""

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        """A bar of `total` units, of which `done` were done before."""
        yield _SilentBar()


class _SilentBar:
    def advance(self, count: int = 1, note: str = "") -> None:
        pass


class TerminalReporter(Reporter):
    """Bars with the time left on a terminal; elsewhere a line every `interval` seconds."""

    def __init__(self, console: Console | None = None, interval: float = 15.0) -> None:
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())
        self.interval = interval

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        if not self.console.is_terminal:
            yield _LineBar(self, title, total, done)
            return
        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(title, total=total, completed=done, note="")
            yield _RichBar(progress, task)


class _RichBar:
    def __init__(self, progress: Progress, task: int) -> None:
        self.progress, self.task = progress, task

    def advance(self, count: int = 1, note: str = "") -> None:
        if note:
            self.progress.update(self.task, advance=count, note=note)  # type: ignore[arg-type]
        else:
            self.progress.update(self.task, advance=count)  # type: ignore[arg-type]


class _LineBar:
    def __init__(self, reporter: TerminalReporter, title: str, total: int, done: int) -> None:
        self.reporter, self.title, self.total, self.done = reporter, title, total, done
        self.first_done, self.start, self.last = done, time.monotonic(), time.monotonic()

    def advance(self, count: int = 1, note: str = "") -> None:
        self.done += count
        now = time.monotonic()
        if now - self.last >= self.reporter.interval and self.done < self.total:
            self.last = now
            left = (now - self.start) / max(1, self.done - self.first_done) * (self.total - self.done)
            text = f"{self.title}: {self.done}/{self.total}, {duration(left)} left {note}"
            self.reporter.say(text.rstrip())


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> [duration(value) for value in (41.6, 200, 7260, 400000)]
    ['42 s', '3 min', '2 h 1 min', '4 days 15 h']
    """
    minutes, hours, days = seconds / 60, int(seconds // 3600), int(seconds // 86400)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes:.0f} min"
    return f"{hours} h {minutes % 60:.0f} min" if days < 2 else f"{days} days {hours % 24} h"
