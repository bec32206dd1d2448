"""What a person sees during long work: bars on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich import progress
from rich.console import Console


class Bar:
    """The progress of one long task; this one shows nothing."""

    def advance(self, count: int = 1, note: str = "") -> None:
        """`count` more units are done; `note` stands at the end of the line until the next one."""


class Reporter:
    """Prints nothing: for libraries and processes other than the first."""

    def say(self, text: str) -> None:
        """One line for the user."""

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        """A bar of `total` units, of which `done` were done before."""
        yield Bar()


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
            *progress.Progress.get_default_columns(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[note]}"),
        )
        with progress.Progress(*columns, console=self.console, transient=True) as shown:
            yield _RichBar(shown, shown.add_task(title, total=total, completed=done, note=""))


class _RichBar(Bar):
    def __init__(self, shown: progress.Progress, task: progress.TaskID) -> None:
        self.shown, self.task = shown, task

    def advance(self, count: int = 1, note: str = "") -> None:
        fields: dict[str, Any] = {"note": note} if note else {}
        self.shown.update(self.task, advance=count, **fields)


class _LineBar(Bar):
    def __init__(self, reporter: TerminalReporter, title: str, total: int, done: int) -> None:
        self.reporter, self.title, self.total, self.done = reporter, title, total, done
        self.before, self.start = done, time.monotonic()
        self.last = self.start

    def advance(self, count: int = 1, note: str = "") -> None:
        self.done += count
        now = time.monotonic()
        if now - self.last >= self.reporter.interval and self.done < self.total:
            self.last = now
            left = (now - self.start) / max(1, self.done - self.before) * (self.total - self.done)
            self.reporter.say(
                f"{self.title}: {self.done}/{self.total}, {duration(left)} left {note}".rstrip()
            )


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
