"""The class index: which label values stand in which mask, and the sizes.

Made once from all masks, in parallel, and kept in the user's cache. An entry counts only as long as the sizes
and times of its two files stay as they were, so edited or exchanged files are read anew and nothing else is.
A pair with a fault is never cached: it is looked at again until it is mended.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiss.data.images import check_whole, load_picture, picture_size
from tiss.errors import TissError
from tiss.files import read_json, write_json

try:
    import fcntl
except ImportError:  # no such locks on this system: each process then makes the index for itself
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
_CACHE_BYTES = 1 << 29  # a million entries; written by this module, so only a mistake is larger
_CHUNK = 64
_FEW = 256  # below this many files, starting processes costs more than it saves


@dataclass(frozen=True)
class Pair:
    """The files of one sample. Either may be absent on disk: the scan says so."""

    image: str
    mask: str


@dataclass(frozen=True)
class Entry:
    """What one mask holds: pixels of each label value, and its size; or what is wrong with the pair."""

    pixels: dict[int, int]
    width: int = 0
    height: int = 0
    problem: str | None = None


Scan = Callable[[Any], Entry]
Signature = list[int] | None  # sizes and times of the two files; None if one is missing
LabelReader = Callable[[str], np.ndarray]


def scan_pair(pair: Pair, read_label: LabelReader, classes: int, whole: bool = False) -> Entry:
    """Reads the mask and the picture's header and checks one against the other.

    `classes` is K: label values 0..K and 255 are legal. With `whole`, the end of the picture file is looked
    at too, so that a file that was cut off is found before training starts.
    """
    try:
        if not os.path.exists(pair.image):
            raise TissError(f"{pair.mask}: its picture {pair.image} is missing")
        if not os.path.exists(pair.mask):
            raise TissError(f"{pair.image}: its mask {pair.mask} is missing")
        label = read_label(pair.mask)
        height, width = label.shape
        size = picture_size(pair.image)
        if size == (height, width) != (width, height):  # a rotation that the header does not tell
            rows, columns, _ = load_picture(pair.image).shape
            size = (columns, rows)
        if size != (width, height):
            raise TissError(f"{pair.mask}: {width} × {height}, but its picture is {size[0]} × {size[1]}")
        if whole:
            check_whole(pair.image)
        counts = np.bincount(label.ravel(), minlength=256)
        check_labels(counts, pair.mask, classes)
    except TissError as error:
        return Entry({}, problem=str(error))
    return Entry({int(value): int(counts[value]) for value in np.flatnonzero(counts)}, width, height)


def check_labels(counts: np.ndarray, path: str, classes: int) -> None:
    """Raises if a label value above `classes` other than 255 has pixels; `counts` is int, 256."""
    illegal = np.flatnonzero(counts[classes + 1 : 255]) + classes + 1
    if len(illegal):
        listed = ", ".join(f"{value} ({counts[value]} pixels)" for value in illegal[:5])
        raise TissError(f"{path}: label {listed} is not one of 0 to {classes} or 255")


def make_index(
    file: Path | None, kind: str, pairs: Mapping[str, Pair | int], scan: Scan, what: str = "masks"
) -> dict[str, Entry]:
    """The entry of every id in `pairs`, from the cache `file` where files are unchanged, else by `scan`.

    A data set that is one table has row numbers instead of files, and `kind` names the table's contents.
    `kind` says how labels are read (colour map, label files): a cache of another kind is not used.
    """
    signatures = {id: _signature(pair) for id, pair in pairs.items()}
    entries = _known(file, kind, signatures)
    if len(entries) < len(pairs):
        with _only_one(file) as waited:
            if waited:  # another process may have made it meanwhile
                entries = _known(file, kind, signatures)
            todo = [id for id in pairs if id not in entries]
            scanned = parallel_map(scan, [pairs[id] for id in todo], f"Reading {what}")
            entries.update(zip(todo, scanned, strict=True))
            if todo and file is not None:
                _write_cache(file, kind, entries, signatures)
    return {id: entries[id] for id in pairs}


def _known(file: Path | None, kind: str, signatures: Mapping[str, Signature]) -> dict[str, Entry]:
    """Entries of the cache whose files are as they were."""
    cached = _read_cache(file, kind) if file is not None else {}
    entries = {}
    for id, signature in signatures.items():
        found = cached.get(id)
        if found is not None and signature is not None and found[0] == signature:
            flat = found[3]
            entries[id] = Entry(dict(zip(flat[::2], flat[1::2], strict=True)), found[1], found[2])
    return entries


@contextmanager
def _only_one(file: Path | None) -> Iterator[bool]:
    """Holds a lock beside `file`, so that of many processes of a run one reads the masks and the others wait.

    Gives True where the lock is held. The system frees it when a process ends, however that happens.
    """
    if file is None or fcntl is None:
        yield False
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # a cache that cannot be written is told when it is written
        yield False
        return
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield True
    finally:
        os.close(descriptor)


def parallel_map(function: Callable[[Any], Any], items: Sequence[Any], title: str) -> Iterator[Any]:
    """`function` over `items`, in order, on all processors, with a progress bar on a terminal."""
    workers = min(_processors(), 1 + len(items) // _CHUNK)
    if len(items) < _FEW or workers == 1:
        yield from _with_progress(map(function, items), len(items), title)
        return
    try:
        with _pool(workers, function) as pool:
            if isinstance(pool, ProcessPoolExecutor):
                results = pool.map(_call, items, chunksize=_CHUNK)
            else:
                results = pool.map(function, items)
            yield from _with_progress(results, len(items), title)
    except BrokenProcessPool:
        raise TissError(f"{title}: the system ended a process, mostly for lack of memory") from None


def _pool(workers: int, function: Callable[[Any], Any]) -> Executor:
    """Forked processes on Linux; threads elsewhere, since spawned ones would run the user's script again."""
    if sys.platform == "linux":
        fork = multiprocessing.get_context("fork")
        return ProcessPoolExecutor(workers, mp_context=fork, initializer=_receive, initargs=(function,))
    return ThreadPoolExecutor(workers)


_function: Callable[[Any], Any] | None = None


def _receive(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function


def _call(item: Any) -> Any:
    assert _function is not None
    return _function(item)


def _with_progress(results: Iterable[Any], total: int, title: str) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if total < _FEW or not console.is_terminal:
        yield from results
        return
    yield from track(results, description=title, total=total, console=console, transient=True)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    """Where indices lie: $TISS_CACHE, else $XDG_CACHE_HOME/tiss, else ~/.cache/tiss."""
    if os.environ.get("TISS_CACHE"):
        return Path(os.environ["TISS_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tiss"


def cache_file(name: str, split: str, root: Path) -> Path:
    """The index file of one split of the data set under `root`."""
    place = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]
    return cache_folder() / "index" / f"{name}-{split}-{place}.json"


def _signature(pair: Pair | int) -> Signature:
    if isinstance(pair, int):
        return []  # rows of a table: `kind` names its contents
    try:
        mask, image = os.stat(pair.mask), os.stat(pair.image)
    except OSError:
        return None
    return [mask.st_size, mask.st_mtime_ns, image.st_size, image.st_mtime_ns]


def _read_cache(file: Path, kind: str) -> dict[str, list[Any]]:
    """Cached entries by id; whatever is wrong with the file, it is as if there were none."""
    try:
        document = read_json(file, _CACHE_BYTES)
        if document["format"] != FORMAT or document["kind"] != kind:
            return {}
        entries = document["entries"]
        return entries if isinstance(entries, dict) and all(_valid(row) for row in entries.values()) else {}
    except (TissError, KeyError, TypeError):
        return {}


def _valid(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 4
        and isinstance(row[3], list)
        and len(row[3]) % 2 == 0
        and all(type(value) is int for value in row[3])
    )


def _write_cache(
    file: Path, kind: str, entries: dict[str, Entry], signatures: Mapping[str, Signature]
) -> None:
    rows = {
        id: [signatures[id], entry.width, entry.height, [n for item in entry.pixels.items() for n in item]]
        for id, entry in entries.items()
        if entry.problem is None and signatures[id] is not None
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"format": FORMAT, "kind": kind, "entries": rows}, indent=None)
    except (OSError, TissError) as error:
        print(f"tiss: class index not kept, set TISS_CACHE to a writable folder ({error})", file=sys.stderr)
