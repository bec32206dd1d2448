"""Reading files of unknown origin: kind, size, depth and names are checked before use."""

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tiss.errors import TissError
from tiss.files.atomic import PathLike, explained

MEGABYTE = 1 << 20
JSON_BYTES = 16 * MEGABYTE  # empty lists take some twenty times their text in memory
MAX_DEPTH = 64  # levels of nested values


@contextmanager
def open_regular(path: PathLike) -> Iterator[BinaryIO]:
    """Opens a plain file for reading; a pipe, a device or a folder is refused instead of waited for."""
    at_once = getattr(os, "O_NONBLOCK", 0)
    with explained(path), open(path, "rb", opener=lambda name, flags: os.open(name, flags | at_once)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise TissError(f"{path}: not a file")
        yield file


def read_bytes(path: PathLike, max_bytes: int) -> bytes:
    """The file's contents, if it has at most `max_bytes`."""
    with open_regular(path) as file:
        data = file.read(max_bytes + 1) if os.fstat(file.fileno()).st_size <= max_bytes else None
    if data is None or len(data) > max_bytes:
        raise TissError(f"{path}: larger than the {max_bytes:,} bytes that such a file may have")
    return data


def read_text(path: PathLike, max_bytes: int = JSON_BYTES) -> str:
    """The text in `path`, UTF-8 with or without a byte order mark."""
    try:
        return read_bytes(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TissError(f"{path}: not text in UTF-8 (byte {error.start}); save it as UTF-8") from error


def read_json(path: PathLike, max_bytes: int = JSON_BYTES) -> Any:
    """The JSON value in `path`; NaN, infinity, undecodable text and deep nesting are refused."""
    return parse_json(read_text(path, max_bytes), str(path))


def parse_json(text: str, where: str) -> Any:
    """JSON text as a value; `where` names the file in errors."""
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
        if "\\u" in text:  # half a surrogate pair can be neither printed nor written
            json.dumps(value, ensure_ascii=False).encode()
        if _outgrows(value, most=len(text)):
            raise RecursionError
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise TissError(f"{where}: bad JSON at {place}: {error.msg}") from error
    except ValueError as error:
        raise TissError(f"{where}: bad JSON: {error}") from error
    except RecursionError as error:
        raise TissError(f"{where}: bad JSON: nested deeper than {MAX_DEPTH} levels") from error
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is not a finite number")
    return value


def read_yaml(path: PathLike, max_bytes: int = MEGABYTE) -> Any:
    """The YAML value in `path`, of plain types only; None where it is empty."""
    import yaml

    text = read_text(path, max_bytes)
    try:
        value = yaml.safe_load(text)
    except Exception as error:  # its own errors, and those of dates, numbers, keys and nesting within it
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark is not None else str(path)
        reason = str(getattr(error, "problem", None) or error or type(error).__name__)[:120]
        raise TissError(f"{where}: bad YAML: {reason}") from error
    if _outgrows(value, most=MEGABYTE):
        problem = f"nested deeper than {MAX_DEPTH} levels, or aliases (&, *) without end"
        raise TissError(f"{path}: bad YAML: {problem}")
    return value


def _outgrows(value: Any, most: int) -> bool:
    """Whether a value has more than MAX_DEPTH levels or, with shared parts counted each time, `most` parts."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [item for item in level if isinstance(item, (dict, list, set, tuple)) and item]
        most -= sum(map(len, level))
        if not level or most < 0:
            return most < 0
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return True


def inside(folder: PathLike, name: str) -> Path:
    """`folder` / `name` for a name from a file; refused if it is absolute, climbs out or links out."""
    parts = re.split(r"[/\\]", name)
    problem = f"{folder}: the name {name[:200]!r}"
    if not name or "\0" in name or ".." in parts or parts[0] == "" or parts[0].endswith(":"):
        raise TissError(f"{problem} leads out of the folder")
    if max(len(part.encode(errors="surrogatepass")) for part in parts) > 255:
        raise TissError(f"{problem}… is longer than file names can be")
    path = Path(folder, name)
    try:
        within = path.resolve().is_relative_to(Path(folder).resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise TissError(f"{problem} leads nowhere") from error
    if not within:
        raise TissError(f"{problem} leads out of the folder")
    return path
