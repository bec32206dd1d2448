"""Fetches files over HTTP: with progress, resumed where it broke off, and checked."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tiss import __version__
from tiss.errors import TissError
from tiss.files import read_json, write_json

RECORD = "downloads.json"  # what was fetched into a folder: address, bytes, SHA-256
_CHUNK = 1 << 18
_ATTEMPTS = 5  # without a byte of progress; a transfer that gets further each time goes on
_TIMEOUT = 60


@dataclass(frozen=True)
class Source:
    """A file to fetch. `checksum` is `algorithm:hexadecimal`, or None where nobody has published one."""

    file: str
    urls: tuple[str, ...]
    checksum: str | None
    max_bytes: int


class _BrokenOffError(Exception):
    """The transfer ended too early; what came is kept."""


def fetch(source: Source, folder: Path, wait: Callable[[float], None] = time.sleep) -> Path:
    """The file of `source` in `folder`: as it is if whole, else fetched from where an earlier try ended."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / source.file
    if path.exists():
        _check(path, source, folder)
        return path
    part = folder / f"{source.file}.part"
    for number, url in enumerate(source.urls):
        try:
            _fetch_from(url, part, source, wait)
            break
        except TissError:
            if number == len(source.urls) - 1:
                raise
    _check(part, source, folder, name=source.file)
    os.replace(part, path)
    Path(f"{part}.json").unlink(missing_ok=True)
    return path


def _fetch_from(url: str, part: Path, source: Source, wait: Callable[[float], None]) -> None:
    if urlsplit(url).scheme not in ("http", "https"):
        raise TissError(f"--url {url}: only http and https addresses are fetched")
    failures = 0
    while True:
        before = _size(part)
        try:
            _transfer(url, part, source.max_bytes)
            return
        except _BrokenOffError as error:
            failures = failures + 1 if _size(part) <= before else 1
            if failures >= _ATTEMPTS:
                raise TissError(
                    f"{url}: broke off {failures} times ({error}); the same command again goes on from there"
                ) from None
            wait(min(30.0, 2.0 ** (failures - 1)))


def _transfer(url: str, part: Path, max_bytes: int) -> None:
    """One request: appends to `part` from its end on, or starts anew where the server cannot go on."""
    start = _size(part)
    validator = _validator(part, url) if start else None
    headers = {"User-Agent": f"tiss/{__version__}"}
    if start and validator:
        headers |= {"Range": f"bytes={start}-", "If-Range": validator}
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # we have as much as there is, or the file there is another one
            part.unlink(missing_ok=True)
            raise _BrokenOffError("the server has fewer bytes") from None
        if error.code >= 500:
            raise _BrokenOffError(f"HTTP {error.code}") from None
        raise TissError(f"{url}: HTTP {error.code} {error.reason}; give another address with --url") from None
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(str(error)) from None
    with response:
        goes_on = response.status == 206 and _range_start(response) == start
        if response.status == 206 and not goes_on:
            part.unlink(missing_ok=True)
            raise _BrokenOffError("the server went on from another place")
        _remember(part, url, response)
        _receive(response, part, start if goes_on else 0, max_bytes, url)


def _receive(response: Any, part: Path, start: int, max_bytes: int, url: str) -> None:
    length = response.headers.get("Content-Length", "")
    total = start + int(length) if length.isdecimal() else None
    if total is not None and total > max_bytes:
        raise TissError(f"{url}: {total:,} bytes are more than the {max_bytes:,} expected; not fetched")
    if total is not None and total - start > shutil.disk_usage(part.parent).free:
        raise TissError(f"{part.parent}: too little room for {total:,} bytes")
    done = start
    with open(part, "r+b" if start else "wb") as file, _progress(part.stem, total, start) as advance:
        file.seek(start)
        while True:
            try:
                chunk = response.read(_CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise _BrokenOffError(str(error) or type(error).__name__) from None
            if not chunk:
                break
            done += len(chunk)
            if done > max_bytes:
                raise TissError(f"{url}: more than the {max_bytes:,} bytes expected; not fetched")
            file.write(chunk)
            advance(len(chunk))
    if total is not None and done < total:
        raise _BrokenOffError(f"{done:,} of {total:,} bytes came")


def _progress(name: str, total: int | None, start: int) -> Any:
    """A context that gives `advance(bytes)`; a bar on a terminal, silence elsewhere."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        return nullcontext(lambda count: None)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=console)
    task = bar.add_task(name, total=total, completed=start)

    class Bar:
        def __enter__(self) -> Callable[[int], None]:
            bar.start()
            return lambda count: bar.advance(task, count)

        def __exit__(self, *problem: object) -> None:
            bar.stop()

    return Bar()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _range_start(response: Any) -> int:
    words = response.headers.get("Content-Range", "").replace("-", " ").split()
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else -1


def _remember(part: Path, url: str, response: Any) -> None:
    """Keeps what tells this file from a later one at the same address, so that two are never joined."""
    validator = response.headers.get("ETag", "")
    if not validator or validator.startswith("W/"):
        validator = response.headers.get("Last-Modified", "")
    write_json(f"{part}.json", {"url": url, "validator": validator})


def _validator(part: Path, url: str) -> str | None:
    try:
        known = read_json(f"{part}.json")
        return str(known["validator"]) or None if known["url"] == url else None
    except (TissError, KeyError, TypeError):
        return None


def _check(path: Path, source: Source, folder: Path, name: str | None = None) -> None:
    """Compares with the published checksum or, where there is none, with what an earlier fetch recorded."""
    name = name or path.name
    algorithm, _, wanted = (source.checksum or "sha256:").partition(":")
    digests = {kind: hashlib.new(kind) for kind in {algorithm, "sha256"}}
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            for digest in digests.values():
                digest.update(chunk)
    record = _read_record(folder)
    found = digests[algorithm].hexdigest()
    wanted = wanted or record.get(name, {}).get("sha256", "")
    if wanted and found != wanted.lower():
        path.unlink()
        raise TissError(
            f"{path}: wrong bytes, {algorithm} is {found}, not {wanted}; removed, run the command again"
        )
    entry = {"url": source.urls[0], "bytes": path.stat().st_size, "sha256": digests["sha256"].hexdigest()}
    write_json(folder / RECORD, record | {name: entry})


def _read_record(folder: Path) -> dict[str, dict[str, str]]:
    if not (folder / RECORD).exists():
        return {}
    record = read_json(folder / RECORD)
    if not isinstance(record, dict) or not all(isinstance(entry, dict) for entry in record.values()):
        raise TissError(f"{folder / RECORD}: not a record of downloads; remove it")
    return record


def parse_checksum(text: str) -> str | None:
    """`md5:…`, `sha1:…` or `sha256:…`; `none` for no check."""
    if text == "none":
        return None
    algorithm, _, digits = text.partition(":")
    lengths = {"md5": 32, "sha1": 40, "sha256": 64}
    if len(digits) != lengths.get(algorithm) or not all(
        digit in "0123456789abcdef" for digit in digits.lower()
    ):
        raise TissError(f"--checksum {text}: give md5:…, sha1:… or sha256:… with all digits, or none")
    return text
