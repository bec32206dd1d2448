import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.data.server import Server, running
from tiss.data import download
from tiss.data.download import Source, fetch, parse_checksum, unpack
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


def make_tar(path: Path, names: dict[str, bytes], mode: str = "w", special: bytes | None = None) -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in names.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        if special:
            member = tarfile.TarInfo("special")
            member.type, member.linkname = special, "/etc/passwd"
            tar.addfile(member)
    return path


def make_zip(path: Path, names: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, data in names.items():
            bundle.writestr(name, data)
    return path


GOOD = {"top/a.txt": b"one", "top/deep/b.txt": b"two", "c.txt": b""}


@pytest.mark.parametrize("make", [make_tar, partial(make_tar, mode="w:gz"), make_zip])
def test_unpacks(tmp_path: Path, make: Callable[..., Path]) -> None:
    archive = make(tmp_path / "x", GOOD)
    out = tmp_path / "out"
    (out / "top").mkdir(parents=True)
    (out / "top" / "mine.txt").write_text("kept")
    (out / "top" / "a.txt").write_text("older")
    assert unpack(archive, out) == 3
    found = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert found == GOOD | {"top/mine.txt": b"kept"}


BAD_NAMES = ["../evil.txt", "top/../../evil.txt", "/evil.txt", "..\\evil.txt", "C:/evil.txt"]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str, make: Callable[..., Path]) -> None:
    archive = make(tmp_path / "x", {"fine.txt": b"1", name: b"2"})
    out = tmp_path / "deep" / "out"
    with pytest.raises(TissError, match="leads out of the folder"):
        unpack(archive, out)
    assert list(out.iterdir()) == [], "nothing is left behind"
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    archive = make_tar(tmp_path / "x", {"fine.txt": b"1"}, special=kind)
    with pytest.raises(TissError, match=r"unsafe archive .*'special'"):
        unpack(archive, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "top").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TissError, match="in the way"):
        unpack(make_tar(tmp_path / "x", GOOD), tmp_path / "out")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_bombs_are_stopped_by_what_comes_out(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "x", {"zeros": bytes(5_000_000)})
    assert archive.stat().st_size < 10_000
    with pytest.raises(TissError, match="1,000,000 bytes"):
        unpack(archive, tmp_path / "out", max_bytes=1_000_000)
    with pytest.raises(TissError, match="or 2 files"):
        unpack(make_tar(tmp_path / "y", GOOD), tmp_path / "out", max_files=2)
    assert list((tmp_path / "out").iterdir()) == []


def test_only_what_is_wanted(tmp_path: Path) -> None:
    unpack(make_tar(tmp_path / "x", GOOD), tmp_path / "out", wanted=lambda name: name.endswith("b.txt"))
    assert [path.name for path in (tmp_path / "out").rglob("*.txt")] == ["b.txt"]


def test_broken_archives_are_named(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "x.tgz", {"a": bytes(range(256)) * 500}, "w:gz")
    archive.write_bytes(archive.read_bytes()[:200])
    (tmp_path / "y.tar").write_bytes(b"hello")
    for path in (archive, tmp_path / "y.tar"):
        with pytest.raises(TissError, match=f"{path.name}: broken or unsafe archive"):
            unpack(path, tmp_path / "out")
