"""Every random choice of a run is a pure function of its place in the run.

The order of samples and each augmentation depend only on (seed, step, epoch, position in the global order), so the
number of workers and ranks and a resume cannot change them.
"""

import hashlib

import numpy as np


def stream(*key: int | str) -> np.random.Generator:
    """A generator that belongs to `key` alone.

    >>> stream(0, "order", 1, 2).integers(100) == stream(0, "order", 1, 2).integers(100)
    np.True_
    """
    return np.random.Generator(np.random.Philox(key=seed_of(*key)))


def seed_of(*key: int | str) -> int:
    """64 bits computed from `key` (the same in every process, unlike `hash`)."""
    text = "\x1f".join(str(part) for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def epoch_order(seed: int, step: int, epoch: int, length: int) -> np.ndarray:
    """The global order of `length` samples in one epoch, as int64 indices."""
    return stream(seed, "order", step, epoch).permutation(length)
