"""Training lists from files: `train-0`, `train-1`, … as published with ADE20K's disjoint partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tiss.errors import TissError
from tiss.files import read_text


def read_lists(folder: Path, steps: int, ids: Sequence[str]) -> list[list[str]]:
    """The sorted ids of each step from `train-K.npy` or `train-K.txt` in `folder`.

    A .npy file holds indices into the sorted `ids`, a .txt file one id or index a line. There must be exactly
    one list for each step; indices out of range, unknown ids and repeats are errors that name the file.
    """
    if not folder.is_dir():
        raise TissError(f"--lists {folder}: no such folder")
    ids = sorted(ids)
    lists = [_read(_find(folder, step, steps), ids) for step in range(steps)]
    extra = [path for path in (folder / f"train-{steps}.npy", folder / f"train-{steps}.txt") if path.exists()]
    if extra:
        raise TissError(
            f"{extra[0]}: the task has {steps} steps (0 to {steps - 1}); is it another task's folder?"
        )
    return lists


def _find(folder: Path, step: int, steps: int) -> Path:
    for ending in ("npy", "txt"):
        path = folder / f"train-{step}.{ending}"
        if path.is_file():
            return path
    raise TissError(f"--lists {folder}: no train-{step}.npy or train-{step}.txt; the task has {steps} steps")


def _read(path: Path, ids: Sequence[str]) -> list[str]:
    chosen = _from_array(path, ids) if path.suffix == ".npy" else _from_text(path, ids)
    if len(set(chosen)) < len(chosen):
        twice, _ = Counter(chosen).most_common(1)[0]
        raise TissError(f"{path}: {twice} stands in the list twice")
    if not chosen:
        raise TissError(f"{path}: the list is empty")
    return sorted(chosen)


def _from_array(path: Path, ids: Sequence[str]) -> list[str]:
    try:
        # Mapped, so that a header that promises more than the file holds is refused and not allocated.
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # its header is a literal of Python's, and fails in as many ways
        raise TissError(f"{path}: not a readable .npy file ({error})") from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TissError(f"{path}: expected one row of whole numbers, indices into the sorted training ids")
    return [_at(path, int(index), ids) for index in array]


def _from_text(path: Path, ids: Sequence[str]) -> list[str]:
    words = read_text(path).split()
    known = set(ids)
    if words and words[0] not in known and all(word.isdecimal() and len(word) < 10 for word in words):
        return [_at(path, int(word), ids) for word in words]
    for word in words:
        if word not in known:
            raise TissError(f"{path}: {word} is no training id of this data set")
    return words


def _at(path: Path, index: int, ids: Sequence[str]) -> str:
    if not 0 <= index < len(ids):
        raise TissError(
            f"{path}: index {index}, but the data set has {len(ids)} training images (0 to {len(ids) - 1})"
        )
    return ids[index]
