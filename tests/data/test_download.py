import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.data.server import Server, running
from tiss.data import download
from tiss.data.download import Source, fetch, parse_checksum
from tiss.errors import TissError

DATA = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8).tobytes()
NO_WAIT: Callable[[float], None] = [].append  # any function that returns at once
MD5 = "md5:" + hashlib.md5(DATA).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as running_server:
        running_server.files["x.tar"] = DATA
        yield running_server


@pytest.fixture
def source(server: Server) -> Source:
    return Source("x.tar", (server.url("x.tar"),), MD5, 1 << 20)


def test_fetch_and_record(server: Server, source: Source, tmp_path: Path) -> None:
    path = fetch(source, tmp_path / "new")
    assert path.read_bytes() == DATA
    assert sorted(item.name for item in path.parent.iterdir()) == ["downloads.json", "x.tar"]
    record = json.loads((path.parent / "downloads.json").read_text())["x.tar"]
    sha256 = hashlib.sha256(DATA).hexdigest()
    assert record == {"url": server.url("x.tar"), "bytes": len(DATA), "sha256": sha256}
    fetch(source, tmp_path / "new")
    assert len(server.asked) == 1, "a whole file is not fetched again"


def test_resumes_where_it_broke_off(server: Server, source: Source, tmp_path: Path) -> None:
    server.break_after = [30_000, 20_000, 0]
    assert fetch(source, tmp_path, NO_WAIT).read_bytes() == DATA
    assert server.asked == [None, "bytes=30000-", "bytes=50000-", "bytes=50000-"]


def test_resumes_in_a_later_run(
    server: Server, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.break_after = [40_000]
    monkeypatch.setattr(download, "_ATTEMPTS", 1)
    with pytest.raises(TissError, match=r"broke off 1 times .* resumes"):
        fetch(source, tmp_path, NO_WAIT)
    assert (tmp_path / "x.tar.part").stat().st_size == 40_000
    assert fetch(source, tmp_path, NO_WAIT).read_bytes() == DATA
    assert server.asked == [None, "bytes=40000-"]


def test_a_server_without_ranges_starts_again(server: Server, source: Source, tmp_path: Path) -> None:
    server.ranges = False
    server.break_after = [30_000]
    assert fetch(source, tmp_path, NO_WAIT).read_bytes() == DATA


@pytest.mark.parametrize("size", [1000, 200_000])
def test_a_part_of_another_file_is_found_by_the_checksum(
    server: Server, source: Source, tmp_path: Path, size: int
) -> None:
    (tmp_path / "x.tar.part").write_bytes(b"?" * size)
    if size < len(DATA):
        with pytest.raises(TissError, match="wrong bytes"):
            fetch(source, tmp_path, NO_WAIT)
    assert fetch(source, tmp_path, NO_WAIT).read_bytes() == DATA


def test_wrong_bytes_are_removed(server: Server, source: Source, tmp_path: Path) -> None:
    server.files["x.tar"] = DATA[:-1] + b"!"
    with pytest.raises(TissError, match=r"wrong bytes, md5 is \w+, not \w+; removed"):
        fetch(source, tmp_path)
    assert not list(tmp_path.glob("x.tar*"))
    server.files["x.tar"] = DATA
    assert fetch(source, tmp_path).read_bytes() == DATA


def test_without_a_checksum_the_first_fetch_counts(server: Server, source: Source, tmp_path: Path) -> None:
    unknown = replace(source, checksum=None)
    fetch(unknown, tmp_path).unlink()
    server.files["x.tar"] = DATA[::-1]
    with pytest.raises(TissError, match="wrong bytes, sha256"):
        fetch(unknown, tmp_path)


def test_server_errors(server: Server, source: Source, tmp_path: Path) -> None:
    server.statuses = [503, 500]
    assert fetch(source, tmp_path, NO_WAIT).read_bytes() == DATA
    missing = replace(source, urls=(server.url("none"),), file="y")
    with pytest.raises(TissError, match="HTTP 404"):
        fetch(missing, tmp_path, NO_WAIT)
    both = replace(missing, urls=(server.url("none"), server.url("x.tar")))
    assert fetch(both, tmp_path, NO_WAIT).read_bytes() == DATA


def test_limits(server: Server, source: Source, tmp_path: Path) -> None:
    with pytest.raises(TissError, match=r"100,000 bytes are more than the 5,000 expected"):
        fetch(replace(source, max_bytes=5000), tmp_path)
    with pytest.raises(TissError, match="only http and https"):
        fetch(replace(source, urls=("file:///etc/passwd",)), tmp_path)


def test_parse_checksum() -> None:
    assert parse_checksum("none") is None
    assert parse_checksum(MD5) == MD5
    for text in ("md5:12", "sha512:" + "0" * 128, "md5:" + "g" * 32, ""):
        with pytest.raises(TissError, match="checksum"):
            parse_checksum(text)
