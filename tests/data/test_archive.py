import io
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tiss.data.download import unpack
from tiss.errors import TissError


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
