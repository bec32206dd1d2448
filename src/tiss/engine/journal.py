"""Where a run writes while it goes on: metrics, trackers and the place of its checkpoint."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tiss.engine.world import World
from tiss.files import append_line, doing, truncate_to
from tiss.files.lock import Lease


class Journal:
    """Writes nothing: for training in Python without a run folder."""

    folder: Path | None = None
    checkpoint: Path | None = None

    def log(self, line: dict[str, Any]) -> None:
        """One line of metrics."""

    def check(self) -> None:
        """Before a checkpoint: stops where the folder has gone into other hands."""

    def size(self) -> int:
        """Bytes of metrics written so far."""
        return 0

    def rewind(self, size: int) -> None:
        """Drops metrics written after the checkpoint that a run resumes from."""

    def restart(self, step: int) -> None:
        """Drops metrics of `step`: an attempt at it was stopped before its first checkpoint."""


class RunJournal(Journal):
    """Writes into a run folder, from the first process only."""

    def __init__(self, folder: Path, world: World, lease: Lease | None = None) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.metrics = folder / "metrics.jsonl"
        self.world = world
        self.lease = lease

    def log(self, line: dict[str, Any]) -> None:
        with doing("log"):
            if self.world.is_main:
                append_line(self.metrics, json.dumps({**line, "time": round(time.time(), 3)}))
            if self.world.accelerator.log_with:
                part = f"step-{line['step']}"  # iterations start anew with every step, so each has its own curves
                values = {f"{part}/loss/{name}": value for name, value in line["losses"].items()}
                values |= {
                    f"{part}/loss": line["loss"],
                    f"{part}/images_per_second": line["images_per_second"],
                }
                self.world.accelerator.log(values, step=line["iteration"])

    def check(self) -> None:
        if self.lease is not None:
            self.lease.check()

    def size(self) -> int:
        return self.metrics.stat().st_size if self.metrics.exists() else 0

    def rewind(self, size: int) -> None:
        if self.world.is_main and self.size() > size:
            truncate_to(self.metrics, size)

    def restart(self, step: int) -> None:
        if not self.world.is_main or not self.metrics.exists():
            return
        kept = 0
        with open(self.metrics, "rb") as lines:
            for line in lines:
                try:
                    earlier = json.loads(line)["step"] < step
                except (ValueError, KeyError, TypeError):  # a line that was cut off
                    break
                if not earlier:
                    break
                kept += len(line)
        truncate_to(self.metrics, kept)
