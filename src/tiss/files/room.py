"""Room on a disk, taken before it is needed: what was learnt for hours must not fail at being written."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from tiss.errors import SpaceError
from tiss.files.atomic import FULL, TEMPORARY, explained


def reserve(folder: str | os.PathLike[str], size: int) -> IO[bytes]:
    """Takes `size` bytes of the disk under `folder` until what is returned is closed; a fuller disk is refused now.

    It is a file without a name, so that a killed process leaves nothing. Where the system cannot hold room, none is.
    """
    with explained(folder):
        held = tempfile.TemporaryFile(dir=folder, prefix=".room.", suffix=TEMPORARY)  # noqa: SIM115 - the caller's
        try:
            with suppress(AttributeError):  # not every system has it
                os.posix_fallocate(held.fileno(), 0, size)
        except OSError as error:
            if error.errno in FULL:
                held.close()
                raise SpaceError(
                    f"{error.strerror}: {folder}; what will be stored there takes about {size / 1e6:.1f} MB: "
                    "free some space and start it again"
                ) from error
        return held


def existing(path: Path) -> Path:
    """The nearest folder above `path` that is there: on its disk `path` will lie."""
    return next(folder for folder in path.resolve().parents if folder.exists())
