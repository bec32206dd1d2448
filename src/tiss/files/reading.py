"""Reading what strangers wrote: sizes, depth and paths are checked before anything is believed."""

from __future__ import annotations

import errno
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

MEGABYTE = 1 << 20
JSON_BYTES = 16 * MEGABYTE  # empty lists take some twenty times their text in memory

# A whole string (or an unfinished one, up to the end), or a bracket: all that the depth depends on.
_NESTING = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


@contextmanager
def open_regular(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a plain file for reading; a pipe, a device or a folder is refused instead of waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise TissError(_why_not(path, error)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise TissError(f"{path}: not a file")
    with os.fdopen(descriptor, "rb") as file:
        try:
            yield file
        except OSError as error:
            raise TissError(_why_not(path, error)) from error


def _why_not(path: str | os.PathLike[str], error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"{path}: no such file"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"cannot read {os.fspath(path)!r}: {reason}"


def read_bytes(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """The file's contents, if it has at most `max_bytes`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(max_bytes + 1) if size <= max_bytes else b""
    if size > max_bytes or len(data) > max_bytes:
        raise TissError(f"{path}: larger than the {max_bytes:,} bytes that such a file may have")
    return data


def read_json(path: str | os.PathLike[str], max_bytes: int = JSON_BYTES, max_depth: int = 64) -> Any:
    """The JSON value in `path`; NaN, infinity, undecodable text and deep nesting are refused."""
    return parse_json(read_bytes(path, max_bytes), str(path), max_depth)


def parse_json(data: bytes, where: str, max_depth: int = 64) -> Any:
    """JSON text as a value; `where` names the file in errors."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TissError(f"{where}: not JSON text in UTF-8 (byte {error.start})") from error
    if _deeper(text, max_depth):
        raise TissError(f"{where}: JSON nested deeper than {max_depth} levels")
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        if "\\u" in text:  # half a surrogate pair can be neither printed nor written
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise TissError(
            f"{where}: bad JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except UnicodeEncodeError as error:
        raise TissError(f"{where}: bad JSON: text with half a surrogate pair") from error
    except ValueError as error:
        raise TissError(f"{where}: bad JSON: {error}") from error
    return value


def read_text(path: str | os.PathLike[str], max_bytes: int = JSON_BYTES) -> str:
    """The text in `path`, UTF-8 with or without a mark at its start."""
    try:
        return read_bytes(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TissError(f"{path}: not text in UTF-8 (byte {error.start}); save it as UTF-8") from error


def read_yaml(path: str | os.PathLike[str], max_bytes: int = MEGABYTE) -> Any:
    """The YAML value in `path`, of plain types only; None where it is empty."""
    import yaml

    text = read_text(path, max_bytes)
    try:
        value = yaml.safe_load(text)
    except Exception as error:
        # Beside its own errors the parser lets out what dates, numbers, keys and nesting raise within it.
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark is not None else str(path)
        reason = (str(getattr(error, "problem", None) or error).splitlines() or [""])[0][:120]
        if isinstance(error, RecursionError):
            reason = "nested too deeply"
        raise TissError(f"{where}: bad YAML: {reason or type(error).__name__}") from error
    if _outgrows(value):
        raise TissError(f"{path}: bad YAML: nested too deeply, or aliases (&, *) that multiply or never end")
    return value


def _outgrows(value: Any, most: int = 1_000_000, depth: int = 64) -> bool:
    """Whether a value written out in full, shared parts each time, has too many parts or levels."""
    levels = [iter([value])]
    while levels:
        for item in levels[-1]:
            most -= 1
            inner = item.values() if isinstance(item, dict) else item
            if isinstance(item, (dict, list, set, tuple)):
                levels.append(iter(inner))
                break
        else:
            levels.pop()
        if most < 0 or len(levels) > depth:
            return True
    return False


def _deeper(text: str, limit: int) -> bool:
    depth = 0
    for match in _NESTING.finditer(text):
        character = text[match.start()]
        if character in "[{":
            depth += 1
            if depth > limit:
                return True
        elif character in "]}":
            depth -= 1
    return False


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is too large a number")
    return value


def inside(folder: str | os.PathLike[str], name: str) -> Path:
    """`folder` / `name` for a name that a file gives; refused if it is absolute, climbs out or links out."""
    parts = re.split(r"[/\\]", name)
    if not name or "\0" in name or ".." in parts or parts[0] == "" or parts[0].endswith(":"):
        raise TissError(f"{folder}: the name {name[:200]!r} leads out of the folder")
    path = Path(folder, name)
    if max(len(part.encode(errors="surrogatepass")) for part in parts) > 255:
        raise TissError(f"{folder}: the name {name[:200]!r}… is longer than file names can be")
    try:
        within = path.resolve().is_relative_to(Path(folder).resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise TissError(f"{folder}: the name {name[:200]!r} leads nowhere") from error
    if not within:
        raise TissError(f"{folder}: the name {name[:200]!r} leads out of the folder")
    return path
