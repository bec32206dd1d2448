from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiss.errors import SpaceError
from tiss.files import existing, reserve


@pytest.fixture
def small_files() -> Iterator[None]:
    """Every file of this process may hold 4,096 bytes: what a full disk looks like without a disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_room_is_taken_and_has_no_name(tmp_path: Path) -> None:
    with reserve(tmp_path, 100_000) as held:
        assert os.fstat(held.fileno()).st_blocks * 512 >= 100_000
        assert list(tmp_path.iterdir()) == []
    assert held.closed


def test_too_little_room_is_refused_in_one_line(tmp_path: Path, small_files: None) -> None:
    with pytest.raises(SpaceError, match=r"takes about 5\.0 MB: free some space"):
        reserve(tmp_path, 5_000_000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(errno.EOPNOTSUPP, "no"), AttributeError("posix_fallocate")])
def test_a_system_that_cannot_hold_room_goes_without(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise error

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    reserve(tmp_path, 100).close()


def test_the_nearest_folder_that_is_there(tmp_path: Path) -> None:
    assert existing(tmp_path / "a" / "b") == tmp_path.resolve()
