"""`tiss run` in a process whose main thread falls asleep for ever in the middle of some work, if it is the one.

python -m tests.engine.sleeping_rank RANK WHERE FLAGS...
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from tiss.cli.main import main
from tiss.data.source import FileSource
from tiss.engine import loop, update
from tiss.methods.mib import MiB
from tiss.methods.sdr import SDR

READS = 60  # pictures that are read before: enough to know how long one takes
UPDATES = 30  # updates that are done before


def sleepy(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    count = 0

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count > calls:
            print(f"rank {os.environ['RANK']} sleeps", flush=True)
            time.sleep(10_000)
        return function(*arguments, **named)

    return call


if __name__ == "__main__":
    rank, where, *flags = sys.argv[1:]
    if os.environ["RANK"] == rank:
        if where == "read":
            FileSource.read = sleepy(FileSource.read, READS)  # type: ignore[method-assign]
        elif where == "loss":  # the others are in the backward pass
            MiB.losses = sleepy(MiB.losses, UPDATES)  # type: ignore[method-assign]
        elif where == "forward":  # the others are there too, or in the backward pass
            update.losses_of = sleepy(update.losses_of, UPDATES)
        elif where == "prototypes":  # after processes have met within the loss
            SDR.prototypes_met = sleepy(lambda: None, UPDATES)  # type: ignore[attr-defined]
            met = SDR._update
            SDR._update = lambda *rest: (met(*rest), SDR.prototypes_met())  # type: ignore
        else:
            loop.save_checkpoint = sleepy(loop.save_checkpoint, 2)
    sys.exit(main(["run", *flags]))
