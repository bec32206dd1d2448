"""The class index: pixels of each label value and size of every mask, kept in the user's cache.

It is made once from all masks, in parallel. An entry is used as long as sizes and times of its two files stay
as they were. A faulty pair is never cached: it is looked at again until it is corrected.
"""

import hashlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from tiss.data.base import Entry, check_labels
from tiss.data.images import Blob, check_whole, image_size, load_image
from tiss.errors import TissError
from tiss.files import read_json, write_json

FORMAT = 1
_CACHE_BYTES = 1 << 29  # a million entries; written by this module, so only a mistake is larger
_CHUNK = 64
_SAID = 5000  # items between two lines of progress where there is no terminal
_FEW = 256  # below this many items, starting processes costs more than it saves


@dataclass(frozen=True)
class Pair:
    """The files of one sample (either may be missing on disk: the scan says so), or their contents."""

    image: str | Blob
    mask: str | Blob


Scan = Callable[[Any], Entry]
Signature = list[int] | None  # sizes and times of the two files; None if one is missing


def scan_pair(
    pair: Pair, read_label: Callable[[Any], np.ndarray], classes: int, decode: bool = False
) -> Entry:
    """Reads the mask and checks it against the image: its header and end, or with `decode` all of it.

    `classes` is K: label values 0..K and 255 are legal. A file that was cut off is found before training starts.
    """
    try:
        for path, error in (
            (pair.image, f"{pair.mask}: its image {pair.image} is missing"),
            (pair.mask, f"{pair.image}: its mask {pair.mask} is missing"),
        ):
            if isinstance(path, str) and not os.path.exists(path):
                raise TissError(error)
        label = read_label(pair.mask)
        size = (0, 0) if decode else image_size(pair.image)
        if decode or size == label.shape != label.shape[::-1]:  # a rotation that the header does not tell
            size = load_image(pair.image).shape[1::-1]
        check_same_size(pair.mask, label, size)
        if not decode and isinstance(pair.image, str):
            check_whole(pair.image)
        check_labels(np.bincount(label.ravel(), minlength=256), str(pair.mask), classes)
    except TissError as error:
        return Entry({}, problem=str(error))
    return Entry.of(label)


def check_same_size(mask: object, label: np.ndarray, size: tuple[int, ...]) -> None:
    """Raises if a mask's size is not that of its image, given as width and height."""
    height, width = label.shape
    if size != (width, height):
        raise TissError(f"{mask}: {width} × {height}, but its image is {size[0]} × {size[1]}")


def make_index(
    file: Path, kind: str, pairs: Mapping[str, Pair | int], scan: Scan, fresh: bool = False
) -> dict[str, Entry]:
    """The entry of every id in `pairs`, from the cache `file` where files are unchanged, else by `scan`.

    A data set that is one table has row numbers instead of files, and `kind` names the table's contents.
    `kind` also says how labels are read (colour map, label files): a cache of another kind is not used. With `fresh`,
    none is.
    """
    signatures = {id: _signature(pair) for id, pair in pairs.items()}
    entries = {} if fresh else _known(file, kind, signatures)
    if len(entries) < len(pairs):
        with ExitStack() as held:  # of the processes of a run, one reads the masks and the others wait
            with suppress(OSError):  # a cache that cannot be written is reported when it is written
                file.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(FileLock(f"{file}.lock"))
            entries = {} if fresh else _known(file, kind, signatures)
            todo = [id for id in pairs if id not in entries]
            found = parallel_map(scan, [pairs[id] for id in todo], "Reading masks")
            entries.update(zip(todo, found, strict=True))
            if todo:
                _write_cache(file, kind, entries, signatures)
    return {id: entries[id] for id in pairs}


def parallel_map(
    function: Callable[[Any], Any], items: Sequence[Any], title: str, workers: int | None = None
) -> Iterator[Any]:
    """`function` over `items`, in order, by several processes, with a bar on a terminal."""
    workers = min(workers or processors(), 1 + len(items) // _CHUNK)
    if len(items) < _FEW or workers == 1:
        yield from map(function, items)
        return
    from rich.console import Console
    from rich.progress import track

    # forked processes on Linux; threads elsewhere, since spawned processes would run the user's script again
    fork = sys.platform == "linux"
    context = multiprocessing.get_context("fork") if fork else None
    pool: Executor = (
        ProcessPoolExecutor(workers, context, _receive, (function,)) if fork else ThreadPoolExecutor(workers)
    )
    chunk = min(_CHUNK, len(items) // (4 * workers) + 1)
    try:
        with pool:
            results = pool.map(_call if fork else function, items, chunksize=chunk)
            console = Console(stderr=True)
            if console.is_terminal:
                yield from track(results, title, len(items), console=console, transient=True)
            else:
                for done, result in enumerate(results):
                    if done % _SAID == 0:
                        print(f"{title}: {done:,} of {len(items):,}", file=sys.stderr, flush=True)
                    yield result
    except BrokenProcessPool:
        raise TissError(f"{title}: the system ended a process, most often because memory ran out") from None


_function: Callable[[Any], Any]


def _receive(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function


def _call(item: Any) -> Any:
    return _function(item)


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    """Where indices are kept: $TISS_CACHE, else $XDG_CACHE_HOME/tiss, else ~/.cache/tiss."""
    if os.environ.get("TISS_CACHE"):
        return Path(os.environ["TISS_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tiss"


def cache_file(name: str, place: str) -> Path:
    """The index file of what `name` and `place` (a folder or a table) stand for."""
    return cache_folder() / "index" / f"{name}-{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"


def _signature(pair: Pair | int) -> Signature:
    if isinstance(pair, int):
        return []  # rows of a table: `kind` names its contents
    try:
        mask, image = os.stat(str(pair.mask)), os.stat(str(pair.image))
    except OSError:
        return None
    return [mask.st_size, mask.st_mtime_ns, image.st_size, image.st_mtime_ns]


def _known(file: Path, kind: str, signatures: Mapping[str, Signature]) -> dict[str, Entry]:
    """Entries of the cache whose files are as they were; a damaged cache is as if there were none."""
    entries = {}
    try:
        document = read_json(file, _CACHE_BYTES)
        if document["format"] != FORMAT or document["kind"] != kind:
            return {}
        for id, (signature, width, height, flat) in document["entries"].items():
            if signature is not None and signatures.get(id) == signature:
                pixels = dict(zip(map(int, flat[::2]), map(int, flat[1::2]), strict=True))
                entries[id] = Entry(pixels, int(width), int(height))
    except (TissError, KeyError, TypeError, ValueError, AttributeError):
        return {}
    return entries


def _write_cache(
    file: Path, kind: str, entries: dict[str, Entry], signatures: Mapping[str, Signature]
) -> None:
    rows = {
        id: [signatures[id], entry.width, entry.height, [n for item in entry.pixels.items() for n in item]]
        for id, entry in entries.items()
        if entry.problem is None and signatures[id] is not None
    }
    try:
        write_json(file, {"format": FORMAT, "kind": kind, "entries": rows}, indent=None)
    except TissError as error:
        print(f"tiss: class index not kept, set TISS_CACHE to a writable folder ({error})", file=sys.stderr)
